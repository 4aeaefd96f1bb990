"""Chaos on real parts: clients, brokers and the store are hurt by a seeded schedule.
See docs/chaos.md.

    python -m tests.chaos --minutes 10 --seed 1

    record       the bytes of a record, which say who made it and whether they are whole
    runs         consecutive records as one value, sets of numbers
    journal      what a child did, line by line, readable after kill -9
    writer, reader, transformer   the programs of the children
    history      the journals as the checker wants them
    checker      what went wrong, from histories and the log alone
    schedule     what is done when, from a seed
    store_faults what the proxy before the store does
    children     child processes and how far they are
    conductor    runs a schedule against real parts
    log_reader   the final read of the log
    report       says what happened
"""
