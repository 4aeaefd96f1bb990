from __future__ import annotations

import sys
import threading

import pytest
from confluent_kafka import KafkaError

from blobmsg.message import Message
from blobmsg.undelivered import Gathering, Undelivered

FIRST, SECOND = ("orders", 0), ("orders", 1)


def message(partition: int, offset: int) -> Message:
    return Message("orders", partition, offset)


def offsets(undelivered: Undelivered) -> list[tuple[int | None, int | None]]:
    """Of all that is handed out, to the end."""
    found: list[tuple[int | None, int | None]] = []
    with pytest.raises(IndexError):
        found.extend((m.partition(), m.offset()) for m in undelivered.pop_each)
    return found


def mixed() -> Undelivered:
    undelivered = Undelivered()
    undelivered.messages += [message(0, 5), message(1, 7), message(0, 6), message(1, 8)]
    return undelivered


def test_messages_leave_in_order_and_more_can_follow() -> None:
    undelivered = mixed()
    assert offsets(undelivered) == [(0, 5), (1, 7), (0, 6), (1, 8)]
    undelivered.messages += [message(0, 9)]
    assert offsets(undelivered) == [(0, 9)]


def test_a_paused_partitions_messages_wait_for_its_resume() -> None:
    undelivered = mixed()
    undelivered.pause(FIRST)
    undelivered.pause(FIRST)
    assert undelivered.positions() == {FIRST: 5, SECOND: 7}
    assert offsets(undelivered) == [(1, 7), (1, 8)]
    assert undelivered.records() == 2
    undelivered.messages += [message(1, 9)]
    undelivered.resume(FIRST)
    undelivered.resume(FIRST)
    assert offsets(undelivered) == [(0, 5), (0, 6), (1, 9)]


def test_a_partition_that_goes_takes_its_messages_along_wherever_they_are() -> None:
    undelivered = mixed()
    undelivered.pause(FIRST)
    gathering = Gathering()
    undelivered.gather(gathering)
    gathering.messages += [message(0, 3), message(1, 6)]
    assert undelivered.drop(FIRST) == 3
    assert undelivered.positions() == {SECOND: 6}
    assert undelivered.forget(SECOND) == 3
    undelivered.resume(FIRST)
    assert offsets(undelivered) == []
    assert not gathering.messages


@pytest.mark.parametrize("is_gathered", [False, True])
def test_what_an_interrupted_call_gathered_comes_first_again(*, is_gathered: bool) -> None:
    undelivered = Undelivered()
    undelivered.messages += [message(0, 7)]
    gathering = Gathering()
    undelivered.gather(gathering)
    gathering.messages += [message(0, 5), message(0, 6)]
    assert undelivered.positions() == {FIRST: 5}
    if is_gathered:  # interrupted behind it
        undelivered.gathered(gathering)
    undelivered.put_back(gathering)
    assert undelivered.records() == 3
    assert offsets(undelivered) == [(0, 5), (0, 6), (0, 7)]


def test_a_position_is_that_before_the_first_which_is_here() -> None:
    undelivered = mixed()
    undelivered.position_before[FIRST, 5] = None
    undelivered.position_before[SECOND, 7] = 3
    assert undelivered.positions() == {FIRST: None, SECOND: 3}
    for _ in undelivered.pop_each:
        break
    assert undelivered.positions() == {FIRST: 6, SECOND: 3}
    gathering = Gathering()
    undelivered.gather(gathering)
    gathering.messages += [message(0, 2)]
    gathering.position_before[FIRST, 2] = 1
    assert undelivered.positions() == {FIRST: 1, SECOND: 3}
    undelivered.put_back(gathering)
    undelivered.forget_positions()
    assert undelivered.positions() == {FIRST: 1, SECOND: 3}
    offsets(undelivered)
    undelivered.forget_positions()
    assert undelivered.position_before == {}


def test_what_was_gathered_of_a_paused_partition_waits_before_what_came_later() -> None:
    undelivered = Undelivered()
    gathering = Gathering()
    undelivered.gather(gathering)
    gathering.messages += [message(0, 5), message(1, 7), message(0, 6)]
    undelivered.messages += [message(0, 7)]
    undelivered.pause(FIRST)
    undelivered.put_back(gathering)
    assert offsets(undelivered) == [(1, 7)]
    undelivered.resume(FIRST)
    assert offsets(undelivered) == [(0, 5), (0, 6), (0, 7)]


def test_a_partition_that_is_taken_away_is_not_paused_when_it_comes_again() -> None:
    undelivered = mixed()
    undelivered.pause(FIRST)
    undelivered.forget(FIRST)
    gathering = Gathering()
    gathering.messages += [message(0, 9)]
    undelivered.put_back(gathering)
    assert offsets(undelivered)[0] == (0, 9)


def test_positions_of_one_paused_partition_do_not_keep_those_of_the_others() -> None:
    undelivered = mixed()
    undelivered.position_before[FIRST, 5] = 4
    undelivered.position_before[SECOND, 7] = 3
    undelivered.pause(FIRST)
    offsets(undelivered)
    undelivered.forget_positions()
    assert undelivered.position_before == {(FIRST, 5): 4}
    undelivered.drop(FIRST)
    assert undelivered.position_before == {}


def test_what_was_gathered_is_the_users() -> None:
    undelivered = Undelivered()
    gathering = Gathering()
    undelivered.gather(gathering)
    gathering.messages += [message(0, 5)]
    undelivered.gathered(gathering)
    assert undelivered.positions() == {}
    assert undelivered.records() == 0


def test_events_are_no_records_and_hold_no_position() -> None:
    undelivered = Undelivered()
    ended = KafkaError(KafkaError._PARTITION_EOF)
    undelivered.messages += [Message("orders", 0, 500 << 20, error=ended)]
    undelivered.position_before[FIRST, 500 << 20] = 7
    assert undelivered.records() == 0
    assert undelivered.positions() == {}


def test_threads_that_take_while_another_pauses_get_every_message_once() -> None:
    undelivered = Undelivered()
    count = 20_000
    undelivered.messages += [message(number % 2, number) for number in range(count)]
    taken: list[list[int | None]] = [[], []]
    is_done = threading.Event()

    def take(mine: list[int | None]) -> None:
        while not is_done.is_set() or undelivered.messages:
            try:
                for found in undelivered.pop_each:
                    mine.append(found.offset())
                    break
            except IndexError:
                pass

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=take, args=(mine,)) for mine in taken]
        for thread in threads:
            thread.start()
        while undelivered.messages:
            undelivered.pause(FIRST)
            undelivered.resume(FIRST)
        is_done.set()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval_s)
    assert sorted(number for mine in taken for number in mine if number is not None) == list(
        range(count)
    )
