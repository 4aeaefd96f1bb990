"""Real parts on one machine: three Kafka brokers in three zones and an S3 store.

From a shell::

    blobmsg dev up            # start (the first time: gets Kafka with Maven, builds MinIO with Go)
    eval "$(blobmsg dev env)" # addresses and keys as environment variables
    blobmsg dev status
    blobmsg dev down

From a program; the stack ends with the process, even after `kill -9`::

    from blobmsg.lab import start_stack

    with start_stack() as stack:
        producer = BlobProducer({**stack.conf("my/prefix"), "blobmsg.zone": "az1"})
        stack.broker(2).kill()       # also: pause(), resume(), paused(), shut_down()
        stack.broker(2).start()      # same port, same data; returns when it answers
        with stack.minio.paused():
            ...

`open_stack()` does the same but uses the running stack that `BLOBMSG_DEV_STACK` (or the addresses
printed by `blobmsg dev env`) names, if any. Tests take the fixtures of `tests/conftest.py`:
`stack`, `bootstrap`, `make_topic`, `store_prefix`, `conf`.

Servers run in Docker where an engine answers and as plain processes where not
(`BLOBMSG_DEV_RUNTIME=native|docker` decides otherwise). Data is in a temporary folder and is gone
when the stack stops. What is built once is in the user's cache folder.
"""

from __future__ import annotations

from blobmsg.lab.errors import LabError, PartsMissing
from blobmsg.lab.stack import Node, S3Access, Stack
from blobmsg.lab.stacks import (
    DEFAULT_HEAP_MEBIBYTES,
    find_stack,
    install_parts,
    missing_parts,
    open_stack,
    reap_orphans,
    stack_from_environ,
    start_stack,
)
from blobmsg.lab.state import check_name, known_stacks
from blobmsg.lab.topics import create_topics

__all__ = [
    "DEFAULT_HEAP_MEBIBYTES",
    "LabError",
    "Node",
    "PartsMissing",
    "S3Access",
    "Stack",
    "check_name",
    "create_topics",
    "find_stack",
    "install_parts",
    "known_stacks",
    "missing_parts",
    "open_stack",
    "reap_orphans",
    "stack_from_environ",
    "start_stack",
]
