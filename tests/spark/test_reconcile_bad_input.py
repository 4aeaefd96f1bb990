"""What `reconcile` says of what it can't do, and that nothing of it is visible then."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException

from blobmsg.errors import BlobmsgError, ConfigError, StoreDenied
from blobmsg_spark import history_files, read_history, reconcile, reconcile_stream
from blobmsg_spark.history_log import HistoryLog
from blobmsg_spark.history_store import history_place
from tests.helpers.histories import fill

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from blobmsg import lab

pytestmark = pytest.mark.timeout(300)


def _objects(stack: lab.Stack, prefix: str) -> list[str]:
    with closing(stack.s3_client()) as s3:
        found = s3.list_objects_v2(Bucket=stack.bucket, Prefix=prefix)
    return [item["Key"] for item in found.get("Contents", ())]


@pytest.mark.parametrize("is_gone", [True, False], ids=["missing", "damaged"])
def test_an_object_that_can_not_be_read_leaves_no_topic_with_a_part(
    spark: SparkSession,
    conf: dict[str, Any],
    source_options: dict[str, str],
    make_topic: Callable[..., str],
    stack: lab.Stack,
    store_prefix: str,
    *,
    is_gone: bool,
) -> None:
    good, bad = make_topic(1, name="a"), make_topic(1, name="b")
    fill(conf, bad, 20, routes=("blob",))
    with closing(stack.s3_client()) as s3:
        for key in _objects(stack, store_prefix):
            if is_gone:
                s3.delete_object(Bucket=stack.bucket, Key=key)
                continue
            body = bytearray(s3.get_object(Bucket=stack.bucket, Key=key)["Body"].read())
            for place in range(40, len(body), 40):  # each of its segments
                body[place] ^= 1
            s3.put_object(Bucket=stack.bucket, Key=key, Body=bytes(body))
    fill(conf, good, 20, routes=("blob",))
    options = {**source_options, "subscribe": f"{good},{bad}"}

    error = "ObjectMissing" if is_gone else "CorruptSegment"
    with pytest.raises(PySparkException, match=rf"{error}: .*{bad} \[0\] at Kafka offset 0"):
        reconcile(spark, options)

    for topic in (good, bad):
        with pytest.raises(ConfigError, match="there is no history"):
            history_files(conf, topic)
    added = reconcile(spark, {**options, "blobmsg.on.missing": "skip"})
    assert [(one.topic, one.records) for one in added] == [(good, 20), (bad, 0)]


def test_a_topic_that_is_not_there_is_named(
    spark: SparkSession, source_options: dict[str, str], topic: str
) -> None:
    with pytest.raises(BlobmsgError, match=f"Kafka has no topic {topic}x"):
        reconcile(spark, {**source_options, "subscribe": f"{topic}x"})


def test_a_destination_that_refuses_is_named(
    spark: SparkSession,
    conf: dict[str, Any],
    source_options: dict[str, str],
    topic: str,
    stack: lab.Stack,
    tmp_path: Path,
) -> None:
    payload = {"blobmsg.store.url": f"file://{tmp_path}/payload"}
    fill({**conf, **payload}, topic, 20, routes=("blob",))
    options = {**source_options, **payload, "subscribe": topic}
    wrong = {**options, "blobmsg.s3.secret.access.key": "wrong"}

    with pytest.raises(StoreDenied, match="fix the credentials"):
        reconcile(spark, wrong, to=f"s3://{stack.bucket}/denied")
    with pytest.raises(ConfigError, match="there is no bucket 'no-such-bucket-here'"):
        reconcile(spark, options, to="s3://no-such-bucket-here/history")
    (tmp_path / "file").touch()
    with pytest.raises((PySparkException, BlobmsgError), match="file/below"):
        reconcile(
            spark,
            {**options, "blobmsg.request.timeout.ms": "500"},
            to=f"file://{tmp_path}/file/below",
        )


def test_a_topic_that_was_made_anew_needs_another_place(
    spark: SparkSession, conf: dict[str, Any], source_options: dict[str, str], topic: str
) -> None:
    fill(conf, topic, 5, routes=("blob",))
    log = HistoryLog(history_place(conf).open(), topic)
    log.commit("ab" * 16, "AAAAAAAAAAAAAAAAAAAAAQ", {0: 1 << 20}, [])
    options = {**source_options, "subscribe": topic}

    with pytest.raises(BlobmsgError, match=r"made\s+anew"):
        reconcile(spark, options)
    with pytest.raises(BlobmsgError, match=r"made\s+anew"):
        reconcile_stream(spark, options, checkpoint="/nowhere")
    assert history_files(conf, topic) == []
    assert read_history(spark, conf, topic).count() == 0


def test_records_that_kafka_deleted_before_they_were_written_are_an_error_or_passed_over(
    spark: SparkSession, conf: dict[str, Any], source_options: dict[str, str], topic: str
) -> None:
    options = {**source_options, "subscribe": topic}
    fill(conf, topic, 10, routes=("plain",))
    reconcile(spark, options)
    fill(conf, topic, 10, routes=("plain",))
    admin = AdminClient({"bootstrap.servers": conf["bootstrap.servers"]})
    place = TopicPartition(topic, 0, 15)
    admin.delete_records([place])[place].result(30)

    with pytest.raises(BlobmsgError, match=rf"{topic} \[0\].*deleted what lies before {15 << 20}"):
        reconcile(spark, options)
    assert read_history(spark, conf, topic).count() == 10
    added = reconcile(spark, {**options, "failOnDataLoss": "false"})

    assert [one.records for one in added] == [5]
    offsets = [row.offset >> 20 for row in read_history(spark, conf, topic).collect()]
    assert sorted(offsets) == [*range(10), *range(15, 20)]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"file_bytes": 0}, "file_bytes is 0"),
        ({"compression": "best"}, "compression is 'best'"),
        ({"to": "ftp://x"}, "ftp"),
    ],
)
def test_wrong_arguments_are_refused(
    spark: SparkSession, source_options: dict[str, str], how: dict[str, Any], says: str
) -> None:
    with pytest.raises((ValueError, ConfigError), match=says):
        reconcile(spark, {**source_options, "subscribe": "t"}, **how)
