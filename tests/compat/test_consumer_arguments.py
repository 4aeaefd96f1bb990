"""What a consumer's calls accept and refuse, with stock's errors and texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.compat.differences import instead, says_why

if TYPE_CHECKING:
    from tests.helpers.both import Both, Side

_NO_TOPICS_MADE = {"allow.auto.create.topics": False}


def _outcomes(both: Both, calls: str, *differences: Any, **more: Any) -> dict[str, Any]:
    """Run the calls on a consumer that is neither subscribed nor assigned."""

    def case(side: Side) -> Any:
        with side.consumer({**_NO_TOPICS_MADE, **more}) as consumer:
            return side.outcomes(consumer, calls, t=side.topic())

    by_stock: dict[str, Any] = both.agree(case, *differences)
    return by_stock


def test_wrong_arguments_of_subscribe(both: Both) -> None:
    calls = """
        subscribe()
        subscribe(None)
        subscribe(t)
        subscribe((t,))
        subscribe({t})
        subscribe([])
        subscribe([5])
        subscribe([None])
        subscribe([""])
        subscribe(["^("])
        subscribe([t], on_assign=5)
        subscribe([t], on_revoke="f")
        subscribe([t], on_lost=[])
        subscribe([t], colour="red")
        unsubscribe(5)
    """
    by_stock = _outcomes(both, calls)
    assert by_stock["subscribe([])"][1][1] == "_INVALID_ARG"


def test_none_is_no_callback_of_a_subscription_only_here(both: Both) -> None:
    calls = "subscribe([t], on_assign=None, on_revoke=None, on_lost=None)"
    # As stock's type hints have it.
    _outcomes(both, calls, instead({calls: ("returned", None)}))


def test_wrong_arguments_of_assign_and_its_kin(both: Both) -> None:
    calls = """
        assign()
        assign(None)
        assign(t)
        assign([t])
        assign([None])
        assign((TopicPartition(t, 0),))
        assign(TopicPartition(t, 0))
        assign([TopicPartition(t, 0), TopicPartition(t, 0)])
        assign([TopicPartition(t, 0, -7)])
        assignment()
        incremental_assign()
        incremental_assign(t)
        incremental_assign([5])
        incremental_assign([TopicPartition(t, 0), TopicPartition(t, 0)])
        incremental_unassign()
        incremental_unassign(t)
        incremental_unassign([TopicPartition(t, 0)])
        incremental_unassign([TopicPartition(t, 0), TopicPartition(t, 0)])
    """
    by_stock = _outcomes(both, calls)
    assert by_stock["assign([TopicPartition(t, 0), TopicPartition(t, 0)])"][0] == "raised"
    assert by_stock["incremental_unassign([TopicPartition(t, 0)])"][1][1] == "_INVALID_ARG"


def test_assign_and_its_kin_with_nothing_or_strange_partitions(both: Both) -> None:
    calls = """
        unassign()
        assign([])
        assignment() == []
        incremental_assign([])
        incremental_unassign([])
        assign([TopicPartition(t, -5)])
        assign([TopicPartition("", 0)])
        unassign() or client.assignment()
        assign([TopicPartition(t, 0), TopicPartition(t, 99), TopicPartition("none-" + t, 0)])
        incremental_assign([TopicPartition(t, 0)])
        incremental_unassign([TopicPartition(t, 99)])
        incremental_unassign([TopicPartition(t, 98)])
        incremental_assign([TopicPartition(t, 1), TopicPartition(t, 2)])
        assignment()
    """
    by_stock = _outcomes(both, calls)
    assert by_stock["assignment()"][0] == "returned"


def test_wrong_arguments_of_seek_pause_and_resume(both: Both) -> None:
    calls = """
        seek()
        seek(None)
        seek(t)
        seek([TopicPartition(t, 0, 0)])
        seek(TopicPartition(t, 0, 0))
        seek(TopicPartition(t, 0))
        seek(TopicPartition(t, 0, OFFSET_END))
        seek(TopicPartition("none-" + t, 0, 0))
        pause()
        pause(None)
        pause(t)
        pause([5])
        pause(TopicPartition(t, 0))
        resume()
        resume(None)
        resume(t)
        resume([5])
    """
    by_stock = _outcomes(both, calls)
    assert {what for what, _ in by_stock.values()} == {"raised"}


def test_pausing_and_resuming_what_is_not_assigned(both: Both) -> None:
    calls = """
        pause([])
        pause([TopicPartition(t, 0)])
        pause([TopicPartition("none-" + t, 0)])
        resume([])
        resume([TopicPartition(t, 0)])
        resume([TopicPartition("none-" + t, 0)])
        assign([TopicPartition(t, 0, OFFSET_END)])
        pause([TopicPartition(t, 99)])
        resume([TopicPartition(t, 99)])
        pause([TopicPartition(t, 0), TopicPartition(t, 98)])
        resume([TopicPartition(t, 0), TopicPartition(t, 98)])
    """
    _outcomes(both, calls)


def test_wrong_arguments_of_commit(both: Both) -> None:
    calls = """
        commit()
        commit(None, None)
        commit(asynchronous=False)
        commit(asynchronous=0)
        commit(5)
        commit("message")
        commit(message=TopicPartition(t, 0, 0))
        commit(offsets=5)
        commit(offsets=TopicPartition(t, 0, 0))
        commit(offsets=())
        commit(offsets=[5])
        commit(offsets=[])
        commit(offsets=[], asynchronous=False)
        commit(message=5, offsets=[])
        commit(message=Message(), asynchronous=False)
        commit(message=Message(topic=t), asynchronous=False)
        commit(message=Message(topic=t, partition=0), asynchronous=False)
        commit(message=Message(error=KafkaError(KafkaError._PARTITION_EOF)))
        commit(message=Message(error=KafkaError(3), topic=t, partition=0, offset=5))
        commit(offsets=[TopicPartition(t, 0)], asynchronous=False)
        commit(offsets=[TopicPartition(t, 0, OFFSET_END)], asynchronous=False)
        commit(offsets=[TopicPartition(t, 0, -7)], asynchronous=False)
        commit(offsets=[TopicPartition("none-" + t, 0, 0)], asynchronous=False)
        commit(offsets=[TopicPartition(t, 99, 0)], asynchronous=False)
        commit(**{"async": False})
        commit(offsets=[TopicPartition(t, 0, 0)], **{"async": False})
        commit(offsets=[TopicPartition(t, 0, 0)], **{"async": True})
        commit(offsets=[TopicPartition(t, 0, 0)], asynchronous=True, **{"async": False})
        commit(offsets=[TopicPartition(t, 0, 0)], asynchronous=False, **{"async": True})
        commit(offsets=[TopicPartition(t, 0, 0)], asynchronous=None)
        commit(colour="red")
    """
    by_stock = _outcomes(both, calls)
    assert by_stock["commit(asynchronous=False)"][1][1] == "_NO_OFFSET"


_WHY = ": enable.auto.offset.store must be false"


def test_wrong_arguments_of_store_offsets(both: Both) -> None:
    calls = """
        store_offsets()
        store_offsets(None, None)
        store_offsets(5)
        store_offsets(message="message")
        store_offsets(offsets=5)
        store_offsets(offsets=TopicPartition(t, 0, 0))
        store_offsets(offsets=[5])
        store_offsets(Message(), [TopicPartition(t, 0, 0)])
        store_offsets(5, [])
        store_offsets(Message(error=KafkaError(KafkaError._PARTITION_EOF)))
        store_offsets(colour="red")
    """
    by_stock = _outcomes(both, calls, **{"enable.auto.offset.store": False})
    assert {what for what, _ in by_stock.values()} == {"raised"}


def test_store_offsets_beside_automatic_storing(both: Both) -> None:
    calls = """
        store_offsets(offsets=[])
        store_offsets(Message())
        store_offsets(offsets=[TopicPartition(t, 0, 1 << 20)])
    """
    names = [line.strip() for line in calls.strip().splitlines()]
    by_stock = _outcomes(both, calls, says_why(dict.fromkeys(names, _WHY)))
    assert {error[1] for _, error in by_stock.values()} == {"_INVALID_ARG"}


def test_store_offsets_of_what_is_not_assigned(both: Both) -> None:
    calls = """
        store_offsets(offsets=[])
        store_offsets(Message())
        store_offsets(offsets=[TopicPartition(t, 0, 1 << 20)])
        assign([TopicPartition(t, 0, OFFSET_END)])
        store_offsets(offsets=[TopicPartition(t, 99, 1 << 20)])
        store_offsets(offsets=[TopicPartition("none-" + t, 0, 1 << 20)])
        store_offsets(offsets=[TopicPartition(t, 0)])
        store_offsets(offsets=[TopicPartition(t, 0, OFFSET_END)])
        store_offsets(offsets=[TopicPartition(t, 0, 0), TopicPartition(t, 99, 0)])
    """
    _outcomes(both, calls, **{"enable.auto.offset.store": False})


def test_wrong_arguments_of_questions_about_offsets(both: Both) -> None:
    calls = """
        committed()
        committed(t)
        committed(None)
        committed([5])
        committed([TopicPartition(t, 0)], None)
        committed([TopicPartition(t, 0)], "1")
        position()
        position(t)
        position([5])
        position(TopicPartition(t, 0))
        get_watermark_offsets()
        get_watermark_offsets(t)
        get_watermark_offsets([TopicPartition(t, 0)])
        get_watermark_offsets(TopicPartition(t, 0), None)
        get_watermark_offsets(TopicPartition(t, 0), "1")
        get_watermark_offsets(TopicPartition(t, 99), 20)
        get_watermark_offsets(TopicPartition("none-" + t, 0), timeout=20)
        offsets_for_times()
        offsets_for_times(None)
        offsets_for_times([1])
        offsets_for_times(TopicPartition(t, 0, 5))
        offsets_for_times([TopicPartition(t, 0, 5)], None)
        offsets_for_times([TopicPartition(t, 0, 5)], "1")
    """
    by_stock = _outcomes(both, calls)
    assert {what for what, _ in by_stock.values()} == {"raised"}


def test_questions_about_offsets_of_what_there_is_not(both: Both) -> None:
    calls = """
        committed([])
        committed([TopicPartition(t, 0), TopicPartition(t, 99)], 20)
        committed([TopicPartition("none-" + t, 0)], 20)
        position([])
        position([TopicPartition(t, 0), TopicPartition(t, 99, 5), TopicPartition("none-" + t, 0)])
        position([TopicPartition(t, 0, 5, "kept")])
        get_watermark_offsets(TopicPartition(t, 0), cached=True)
        get_watermark_offsets(TopicPartition(t, 99), cached=True)
        get_watermark_offsets(TopicPartition("none-" + t, 0), 0, True)
        get_watermark_offsets(TopicPartition(t, 0), 20)
        offsets_for_times([], 5)
        offsets_for_times([TopicPartition(t, 0, 5)], 20)
        offsets_for_times([TopicPartition(t, 0)], 20)
        offsets_for_times([TopicPartition(t, 0, 5), TopicPartition(t, 99, 5)], 20)
        offsets_for_times([TopicPartition(t, 99, 5)], 20)
        offsets_for_times([TopicPartition("none-" + t, 0, 5)], 20)
    """
    by_stock = _outcomes(both, calls)
    cached = by_stock["get_watermark_offsets(TopicPartition(t, 0), cached=True)"]
    assert cached == ("returned", (-1001, -1001))


def test_wrong_arguments_of_poll_and_consume(both: Both) -> None:
    calls = """
        poll(None)
        poll("1")
        poll(0, 1)
        poll(colour="red")
        consume(None)
        consume("5")
        consume(1.5)
        consume(-1)
        consume(1_000_001)
        consume(1, None)
        consume(1, "1")
        consume(1, 0, 0)
        consume(colour="red")
    """
    by_stock = _outcomes(both, calls)
    assert {what for what, _ in by_stock.values()} == {"raised"}


def test_poll_and_consume_of_nothing(both: Both) -> None:
    calls = """
        poll(0)
        poll(False)
        poll(timeout=0.01)
        consume(0, 0)
        consume(0)
        consume(5, 0)
        consume(True, 0)
        consume(1_000_000, 0)
        consume(num_messages=3, timeout=0.01)
    """
    by_stock = _outcomes(both, calls)
    assert {repr(result) for _, result in by_stock.values()} == {"None", "[]"}


def test_a_number_of_messages_beyond_64_bits_is_refused_only_here(both: Both) -> None:
    calls = "consume(1 << 70, 0)"
    refused = ("ValueError", "num_messages must be between 0 and 1000000 (1M)")
    # Stock takes it for some other number.
    _outcomes(both, calls, instead({calls: ("raised", refused)}))


def test_the_other_calls_before_joining_a_group(both: Both) -> None:
    calls = """
        memberid()
        memberid(5)
        consumer_group_metadata(5)
        consumer_group_metadata().__class__.__name__
        list_topics(5, 1)
        list_topics(t, None)
        list_topics(t, "1")
        cluster_id(None)
        set_sasl_credentials()
        set_sasl_credentials(None, None)
        set_sasl_credentials("user", "password")
        unsubscribe()
        __bool__()
        __len__()
        nothing_of_this_name()
    """
    by_stock = _outcomes(both, calls)
    assert by_stock["memberid()"][0] == "returned"
