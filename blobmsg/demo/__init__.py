"""`blobmsg demo`: real events through the drop-in, every one of them checked, and the bill.

Three zones, in each a producer and a consumer, every one a process of its own::

    flights.csv → flights → one file of records per zone ─→ worker (produce) ─→ Kafka and store
                     │                                                              │
                     └─→ oracle: what has to arrive        worker (consume) ←───────┘
                             └─→ verdict ←── file of what arrived ──┘

    flights     the records: 336,776 flights of 2013 as JSON, keyed by aircraft
    stage       where it runs: librdkafka's mock cluster and a folder, or the real parts of the lab
    mock_kafka  the process that holds the mock cluster
    worker      the process of one producer or consumer; job: what it is told and what it tells
    children    starts workers, listens to them, ends them
    session     one run from start to end, and the list of runs
    oracle      compares what arrived with what was to arrive, record by record
    figures     counts, percentiles and bills of a run
    report      the same as text
    progress    the bar

The session alone knows all of them. Nothing here is part of the record path.
"""
