"""Kafka in this process: librdkafka's mock cluster, which needs no server and no disk.

It speaks Kafka's protocol on ports of this machine, so any client reaches it, of this process or
another. Through librdkafka's C interface (rdkafka_mock.h), because the setting
`test.mock.num.brokers` belongs to one client and gives all topics the same partitions; and the mock
cluster does not know how to create topics for an AdminClient.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import cimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

__all__ = ["MockKafka"]

_PRODUCER: Final = 0  # rd_kafka_type_t
_NO_ERROR: Final = 0
# When the cluster's thread has answered a call, it throws away all that may wake it. If the next
# call comes at once, it sees it a second later.
_UNTIL_IT_SLEEPS_S: Final = 0.001


class MockKafka:
    """A Kafka cluster that lives in this process; a context manager.

    It has topics, consumer groups, idempotent and transactional producers. It keeps everything in
    memory (the last 5 MiB of a partition), and has no settings of topics to read: give clients
    `blobmsg.retention.ms`. A topic that nobody has created comes into being with four partitions
    when a client asks for it. Of transactions it only does as if: records of aborted ones are
    read.

    Args:
        zones: One broker for each, in this rack.

    Raises:
        RuntimeError: This build of librdkafka has no mock cluster, or it does not start.

    Threads: any; the lock guards `_cluster`.
    """

    def __init__(self, zones: Sequence[str] = ("az1", "az2", "az3")) -> None:
        self._zones = tuple(zones)
        if not self._zones:
            raise ValueError("a cluster needs a zone for its broker")
        self._library = _librdkafka()
        self._lock = threading.Lock()
        self._cluster: Any = None
        reason = ctypes.create_string_buffer(512)
        # The owner only lends its threads; it need not complain that it has no brokers itself.
        conf = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set(conf, b"log_level", b"0", reason, len(reason))
        self._owner = self._library.rd_kafka_new(_PRODUCER, conf, reason, len(reason))
        if not self._owner:
            raise RuntimeError(f"librdkafka does not start: {reason.value.decode()}")
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._owner, len(self._zones))
        if not self._cluster:
            raise RuntimeError("librdkafka's mock cluster does not start")
        for broker, zone in enumerate(self._zones, 1):
            self._tell("rd_kafka_mock_broker_set_rack", broker, zone.encode())
        # By default a group's first member waits 3 s for others.
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def bootstrap_servers(self) -> str:
        """Its addresses, for any client."""
        with self._lock:
            addresses: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._running())
        return addresses.decode()

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Make a topic with a replica on each broker; the leaders go round the zones.

        Raises:
            RuntimeError: The mock cluster refuses, e.g. because the topic is there.
        """
        code = self._tell("rd_kafka_mock_topic_create", name.encode(), partitions, len(self._zones))
        if code != _NO_ERROR:
            raise RuntimeError(
                f"librdkafka's mock cluster refuses topic {name!r} (error {code}; is it there "
                "already?)"
            )
        for partition in range(partitions):
            self._lead(name, partition, partition % len(self._zones) + 1)

    def elect(self, topic: str, partition: int, zone: str) -> None:
        """Make the broker of a zone a partition's leader.

        Clients that know another one hear of it when they ask.

        Raises:
            RuntimeError: The mock cluster has no such partition.
            ValueError: No broker is in that zone.
        """
        if zone not in self._zones:
            raise ValueError(f"no broker is in zone {zone!r}; there are {', '.join(self._zones)}")
        self._lead(topic, partition, self._zones.index(zone) + 1)

    def _lead(self, topic: str, partition: int, broker: int) -> None:
        # With -1 there is no leader, and librdkafka ends this process when a record is written or
        # read then; so that is not for everybody.
        code = self._tell("rd_kafka_mock_partition_set_leader", topic.encode(), partition, broker)
        if code != _NO_ERROR:
            raise RuntimeError(
                f"librdkafka's mock cluster has no partition {topic} [{partition}] (error {code})"
            )

    def go_away(self) -> None:
        """End all connections and take no new ones."""
        self._tell_each("rd_kafka_mock_broker_set_down")

    def come_back(self) -> None:
        """Take connections again."""
        self._tell_each("rd_kafka_mock_broker_set_up")

    def answer_after(self, delay_ms: int) -> None:
        """Answer each request from now on so late."""
        self._tell_each("rd_kafka_mock_broker_set_rtt", delay_ms)

    def refuse_next(self, api_key: int, *codes: int) -> None:
        """Answer the next requests of a kind with errors, one each, whichever broker gets them.

        Args:
            api_key: The kind, as Kafka's protocol numbers it: 9 is OffsetFetch, for example.
            codes: As of `KafkaError`, for example `KafkaError.NOT_COORDINATOR`.
        """
        errors = (ctypes.c_int * len(codes))(*codes)
        with self._lock:
            self._library.rd_kafka_mock_push_request_errors_array(
                self._running(), api_key, len(codes), errors
            )

    def close(self) -> None:
        """End it; close its clients before, or they will complain. A second call is fine."""
        with self._lock:
            cluster, self._cluster = self._cluster, None
            if cluster:
                time.sleep(_UNTIL_IT_SLEEPS_S)
                self._library.rd_kafka_mock_cluster_destroy(cluster)
                self._library.rd_kafka_destroy(self._owner)

    def _tell_each(self, name: str, *arguments: int) -> None:
        for broker in range(1, len(self._zones) + 1):
            code = self._tell(name, broker, *arguments)
            if code != _NO_ERROR:
                raise RuntimeError(f"librdkafka's mock cluster refuses {name} (error {code})")

    def _tell(self, name: str, *arguments: bytes | int) -> int:
        """Let the cluster's thread do something; returns its error."""
        with self._lock:
            cluster = self._running()
            time.sleep(_UNTIL_IT_SLEEPS_S)
            code: int = getattr(self._library, name)(cluster, *arguments)
        return code

    def _running(self) -> Any:
        if not self._cluster:
            raise RuntimeError("this MockKafka has been closed")
        return self._cluster


def _librdkafka() -> Any:
    # A library's symbols are found through whatever links to it, so we need not know where it is.
    library = ctypes.CDLL(cimpl.__file__)
    pointer, number, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    broker = ctypes.c_int32
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "rd_kafka_conf_new": (pointer, []),
        "rd_kafka_conf_set": (number, [pointer, text, text, text, ctypes.c_size_t]),
        "rd_kafka_new": (pointer, [number, pointer, text, ctypes.c_size_t]),
        "rd_kafka_destroy": (None, [pointer]),
        "rd_kafka_mock_cluster_new": (pointer, [pointer, number]),
        "rd_kafka_mock_cluster_destroy": (None, [pointer]),
        "rd_kafka_mock_cluster_bootstraps": (text, [pointer]),
        "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, [pointer, ctypes.c_int32]),
        "rd_kafka_mock_broker_set_rack": (number, [pointer, broker, text]),
        "rd_kafka_mock_broker_set_down": (number, [pointer, broker]),
        "rd_kafka_mock_broker_set_up": (number, [pointer, broker]),
        "rd_kafka_mock_broker_set_rtt": (number, [pointer, broker, number]),
        "rd_kafka_mock_push_request_errors_array": (
            None,
            [pointer, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(number)],
        ),
        "rd_kafka_mock_topic_create": (number, [pointer, text, number, number]),
        "rd_kafka_mock_partition_set_leader": (number, [pointer, text, ctypes.c_int32, broker]),
    }
    for name, (result, arguments) in signatures.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise RuntimeError(
                f"this build of librdkafka has no mock cluster ({name} is missing)"
            ) from None
        function.restype, function.argtypes = result, arguments
    return library
