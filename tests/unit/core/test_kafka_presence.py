from __future__ import annotations

from blobmsg.core.kafka_presence import AWAY_AFTER_MS, KafkaPresence


def test_kafka_is_there_at_first() -> None:
    presence = KafkaPresence()

    assert not presence.is_away(1 << 40)
    assert not presence.is_doubted(1 << 40)


def test_no_broker_for_some_seconds_is_away() -> None:
    presence = KafkaPresence()
    presence.all_brokers_down(100)
    presence.all_brokers_down(2000)  # said again: it does not begin anew

    assert not presence.is_away(100 + AWAY_AFTER_MS - 1)
    assert presence.is_away(100 + AWAY_AFTER_MS)


def test_something_handed_over_and_no_answer_is_away() -> None:
    presence = KafkaPresence(3000)
    presence.handed_over(100)
    presence.handed_over(900)

    assert not presence.is_doubted(1099)
    assert presence.is_doubted(1100)
    assert presence.is_away(3100)


def test_any_answer_brings_it_back() -> None:
    presence = KafkaPresence(3000)
    presence.all_brokers_down(0)
    presence.handed_over(0)

    presence.answered(5000, has_more=False)

    assert not presence.is_away(1 << 40)


def test_answers_count_from_the_last_one_while_more_is_waiting() -> None:
    presence = KafkaPresence(3000)
    presence.handed_over(0)

    presence.answered(2000, has_more=True)

    assert not presence.is_away(4999)
    assert presence.is_away(5000)


def test_a_topic_read_brings_it_back_when_nothing_waits_for_an_answer() -> None:
    presence = KafkaPresence(3000)
    presence.all_brokers_down(0)
    presence.handed_over(0)

    presence.metadata_read(is_waiting=True)
    assert presence.is_away(3000)  # it answers, but acknowledges nothing
    presence.metadata_read(is_waiting=False)
    assert not presence.is_away(1 << 40)


def test_silence_alone_lets_a_probe_through_now_and_then() -> None:
    presence = KafkaPresence()
    presence.handed_over(0)

    asked = range(0, 4 * AWAY_AFTER_MS, 100)
    stored = [now_ms for now_ms in asked if presence.may_store(now_ms)]

    assert stored[: AWAY_AFTER_MS // 100] == list(range(0, AWAY_AFTER_MS, 100))
    assert len(stored) == AWAY_AFTER_MS // 100 + 3
    presence.answered(5 * AWAY_AFTER_MS, has_more=False)
    assert presence.may_store(5 * AWAY_AFTER_MS + 1)


def test_no_broker_lets_no_probe_through() -> None:
    presence = KafkaPresence()
    presence.handed_over(0)
    presence.all_brokers_down(0)

    assert not any(presence.may_store(AWAY_AFTER_MS * n) for n in range(1, 9))
