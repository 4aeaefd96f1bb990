"""The process that holds librdkafka's mock cluster: three brokers with racks, in memory.

    python -m blobmsg.demo.mock_kafka TOPIC...

Prints one JSON line with its addresses, and ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Final

from blobmsg.testing import MockKafka

__all__ = ["main"]

#: Of each topic; three zones share them evenly.
PARTITIONS: Final = 12
ZONES: Final = ("az1", "az2", "az3")


def main() -> int:
    """Hold a cluster with the topics that the command line names."""
    try:
        cluster = MockKafka(ZONES)
        for topic in sys.argv[1:]:
            cluster.create_topic(topic, PARTITIONS)
    except RuntimeError as error:
        why = f"{error}; with real brokers: blobmsg demo --stack real"
        sys.stdout.write(json.dumps({"kind": "failed", "why": why}) + "\n")
        return 1
    message = {"kind": "ready", "bootstrap_servers": cluster.bootstrap_servers}
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
    while os.read(0, 4096):
        pass
    return 0


if __name__ == "__main__":
    # Not sys.exit: the cluster's threads still run, and nobody needs what they hold.
    code = main()
    sys.stdout.flush()
    os._exit(code)
