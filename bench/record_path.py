"""CPU per record of the producer without servers: produce, batch, encode; in C and in Python.

Kafka is a few lines of Python and objects go nowhere (checksummed, not stored), so what is left is
the record path itself. Each way runs in a process of its own; the least of some rounds counts.

    python -m bench.record_path
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

import pytest

from bench._producing import make_batches
from bench._records import Workload, make_records
from blobmsg.uploader import Uploader
from tests.helpers.pipeline import TOPIC, RunningProducer

_SETTINGS = {
    "blobmsg.batch.size.bytes": 16 << 20,
    "queue.buffering.max.kbytes": 1 << 20,
}


def measure(call: str, mib: int, rounds: int) -> None:
    """Print the CPU per record of one way to produce, in this process."""
    workload = Workload()
    keys, values = make_records(workload.records_of(mib), workload)
    batches = make_batches(keys, values)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Uploader, "_put", lambda *_: None)
        running = RunningProducer("bench", monkeypatch, **_SETTINGS)
        running.produce(b"known now")
        running.flush(10)
        least_of_thread_us = least_of_all_us = float("inf")
        for _ in range(rounds):
            thread_s, all_s = time.thread_time(), time.process_time()
            if call == "produce":
                for key, value in zip(keys, values, strict=True):
                    running.producer.produce(TOPIC, value, key)
            else:
                for batch in batches:
                    running.producer.produce_batch(TOPIC, batch)
            thread_s = time.thread_time() - thread_s
            if running.flush(60):
                raise SystemExit("flush gave up")
            all_s = time.process_time() - all_s
            least_of_thread_us = min(least_of_thread_us, thread_s / len(values) * 1e6)
            least_of_all_us = min(least_of_all_us, all_s / len(values) * 1e6)
        running.stop()
    print(f"{least_of_thread_us:.2f} {least_of_all_us:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=128, help="payload of a round (128)")
    parser.add_argument("--rounds", type=int, default=8, help="of which the least counts (8)")
    parser.add_argument("--call", choices=("produce", "produce_batch"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.call:
        measure(arguments.call, arguments.mib, arguments.rounds)
        return
    print("CPU us/record     of the calling thread  of all threads")
    for way, pure in (("C", "0"), ("Python", "1")):
        for call in ("produce", "produce_batch"):
            told = subprocess.run(
                [
                    *(sys.executable, "-m", "bench.record_path", f"--call={call}"),
                    *(f"--mib={arguments.mib}", f"--rounds={arguments.rounds}"),
                ],
                env={**os.environ, "BLOBMSG_PURE_PYTHON": pure},
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split()
            print(f"{way + ', ' + call:<22}{told[0]:>12}{told[1]:>16}")


if __name__ == "__main__":
    main()
