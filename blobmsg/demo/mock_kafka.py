"""The process that holds librdkafka's mock cluster: three brokers with racks, in memory.

    python -m blobmsg.demo.mock_kafka TOPIC...

Prints one JSON line with its addresses, and ends when its standard input does.

Through librdkafka's C interface (rdkafka_mock.h), because the setting `test.mock.num.brokers`
makes topics of four partitions, which three zones can't share evenly, and brokers without racks;
and the mock cluster does not know how to create topics for a client.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any, Final

from confluent_kafka import cimpl

from blobmsg.demo.errors import DemoError

__all__ = ["MockCluster", "main"]

PARTITIONS: Final = 12
ZONES: Final = ("az1", "az2", "az3")

_PRODUCER: Final = 0  # rd_kafka_type_t
_NO_ERROR: Final = 0


class MockCluster:
    """Three brokers in this process, until it ends.

    Raises:
        DemoError: This librdkafka has no mock cluster, or it does not start.
    """

    def __init__(self) -> None:
        self._library = _librdkafka()
        reason = ctypes.create_string_buffer(512)
        # An owner without settings: it only lends its threads.
        client = self._library.rd_kafka_new(_PRODUCER, None, reason, len(reason))
        if not client:
            raise DemoError(f"librdkafka does not start: {reason.value.decode()}")
        self._cluster = self._library.rd_kafka_mock_cluster_new(client, len(ZONES))
        if not self._cluster:
            raise DemoError("librdkafka's mock cluster does not start")
        for broker, zone in enumerate(ZONES, 1):
            self._library.rd_kafka_mock_broker_set_rack(self._cluster, broker, zone.encode())

    @property
    def bootstrap_servers(self) -> str:
        """Its addresses."""
        addresses: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        return addresses.decode()

    def create_topic(self, name: str) -> None:
        """Make a topic with a replica on each broker; its partitions go round the zones.

        Raises:
            DemoError: The mock cluster refuses.
        """
        topic = name.encode()
        codes = [
            self._library.rd_kafka_mock_topic_create(self._cluster, topic, PARTITIONS, len(ZONES))
        ]
        for partition in range(PARTITIONS):
            broker = partition % len(ZONES) + 1
            codes.append(
                self._library.rd_kafka_mock_partition_set_leader(
                    self._cluster, topic, partition, broker
                )
            )
        refusals = [code for code in codes if code != _NO_ERROR]
        if refusals:
            raise DemoError(f"librdkafka's mock cluster refuses topic {name} (error {refusals[0]})")


def _librdkafka() -> Any:
    # A library's symbols are found through whatever links to it, so we need not know where it is.
    library = ctypes.CDLL(cimpl.__file__)
    pointer, number, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "rd_kafka_new": (pointer, [number, pointer, text, ctypes.c_size_t]),
        "rd_kafka_mock_cluster_new": (pointer, [pointer, number]),
        "rd_kafka_mock_cluster_bootstraps": (text, [pointer]),
        "rd_kafka_mock_broker_set_rack": (number, [pointer, ctypes.c_int32, text]),
        "rd_kafka_mock_topic_create": (number, [pointer, text, number, number]),
        "rd_kafka_mock_partition_set_leader": (
            number,
            [pointer, text, ctypes.c_int32, ctypes.c_int32],
        ),
    }
    for name, (result, arguments) in signatures.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise DemoError(
                f"this build of librdkafka has no mock cluster ({name}): run blobmsg demo "
                "--stack real"
            ) from None
        function.restype, function.argtypes = result, arguments
    return library


def main() -> int:
    """Hold a cluster with the topics that the command line names."""
    try:
        cluster = MockCluster()
        for topic in sys.argv[1:]:
            cluster.create_topic(topic)
    except DemoError as error:
        sys.stdout.write(json.dumps({"kind": "failed", "why": str(error)}) + "\n")
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
