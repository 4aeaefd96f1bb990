"""The plugin in projects that are not ours: there without being asked for, and free if unused."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.timeout(120)


def test_a_run_that_asks_for_no_fixture_loads_neither_blobmsg_nor_confluent_kafka(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing_is_loaded(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("blobmsg")
            assert not {"blobmsg", "confluent_kafka", "boto3", "msgpack"} & set(sys.modules)
        """
    )

    pytester.runpytest_subprocess(timeout=100).assert_outcomes(passed=1)


def test_the_fixtures_are_listed_with_what_they_are(pytester: pytest.Pytester) -> None:
    done = pytester.runpytest_subprocess("--fixtures", timeout=100)

    done.stdout.fnmatch_lines(
        ["blobmsg_conf -- *", "    Settings of a producer, and those that producers and *"]
    )


def test_tests_share_the_broker_and_nothing_else(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from blobmsg import BlobConsumer, BlobProducer

        seen = []

        @pytest.mark.parametrize("value", [b"1", b"2"])
        def test_it(value, blobmsg_conf, blobmsg_consumer_conf, blobmsg_topic, blobmsg_store):
            assert blobmsg_store.keys() == blobmsg_store.calls == []
            with BlobProducer(blobmsg_conf) as producer:
                producer.produce(blobmsg_topic, value)
                producer.flush(10)
            with BlobConsumer(blobmsg_consumer_conf) as consumer:
                consumer.subscribe([blobmsg_topic])
                assert consumer.poll(10).value() == value
            assert len(blobmsg_store.keys()) == 1
            seen.append((blobmsg_conf, blobmsg_consumer_conf["group.id"], blobmsg_topic))

        def test_that():
            (one, *rest_of_one), (other, *rest_of_other) = seen
            assert one["bootstrap.servers"] == other["bootstrap.servers"]
            assert one["blobmsg.store.url"] != other["blobmsg.store.url"]
            assert not set(rest_of_one) & set(rest_of_other)
        """
    )

    done = pytester.runpytest_subprocess("-W", "error", "-p", "no:randomly", timeout=100)

    done.assert_outcomes(passed=3)


def test_a_fault_that_one_test_leaves_behind_is_not_the_next_ones(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import pytest
        from blobmsg import BlobProducer

        @pytest.mark.parametrize("_", range(2))
        def test_it(_, blobmsg_conf, blobmsg_topic, blobmsg_store):
            with BlobProducer(blobmsg_conf) as producer:
                producer.produce(blobmsg_topic, b"v")
                assert producer.flush(10) == 0
            blobmsg_store.deny("put", times=None)
            blobmsg_store.hang("put", times=None)
        """
    )

    pytester.runpytest_subprocess(timeout=100).assert_outcomes(passed=2)
