from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Producer

from blobmsg.demo.children import Children
from blobmsg.demo.stage import PARTITIONS, RETENTION_MS, ZONES, embedded_stage

if TYPE_CHECKING:
    from pathlib import Path


def test_its_partitions_go_round_the_zones(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        stage = embedded_stage(tmp_path / "store", children, ["one", "two"])

        topics = Producer({"bootstrap.servers": stage.bootstrap_servers}).list_topics(timeout=10)

    assert len(topics.brokers) == len(ZONES)
    for name in ("one", "two"):
        leaders = [p.leader for _, p in sorted(topics.topics[name].partitions.items())]
        assert leaders == [1, 2, 3] * (PARTITIONS // 3)
        assert stage.partition_zones[name] == ("az1", "az2", "az3") * (PARTITIONS // 3)
    assert stage.conf["blobmsg.retention.ms"] == RETENTION_MS


def test_an_empty_store_has_no_objects(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        stage = embedded_stage(tmp_path / "store", children, ["one"])

        assert stage.objects() == {}
