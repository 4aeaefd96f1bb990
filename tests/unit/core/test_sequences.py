from __future__ import annotations

from blobmsg.core.sequences import Sequences

KEY = ("flights", 0)
OTHER = ("flights", 1)
THIRD = ("flights", 2)


def receive(
    sequences: Sequences, *numbers: int, of: bytes = b"a", key: tuple[str, int] = KEY
) -> int:
    """The gaps so far, once these have come."""
    for number in numbers:
        sequences.received(key, of, number)
    return sequences.gaps


def test_consecutive_sequences_have_no_gap_wherever_they_begin() -> None:
    assert receive(Sequences(), 7, 8, 9) == 0


def test_a_gap_counts_once_however_wide() -> None:
    assert receive(Sequences(), 0, 1, 5, 6, 8) == 2


def test_a_repeat_is_no_gap() -> None:
    assert receive(Sequences(), 3, 3, 2, 3) == 0


def test_producers_and_partitions_have_sequences_of_their_own() -> None:
    sequences = Sequences()
    receive(sequences, 0, of=b"a")
    receive(sequences, 5, of=b"b")
    receive(sequences, 9, of=b"a", key=OTHER)

    receive(sequences, 1, of=b"a")
    receive(sequences, 6, of=b"b")

    assert receive(sequences, 10, of=b"a", key=OTHER) == 0


def test_what_comes_after_a_seek_begins_anew_in_its_partition_alone() -> None:
    sequences = Sequences()
    receive(sequences, 0)
    receive(sequences, 0, key=OTHER)

    sequences.forget(KEY)
    sequences.forget(KEY)

    assert receive(sequences, 7) == 0
    assert receive(sequences, 7, key=OTHER) == 1


def test_only_so_many_producers_are_remembered_those_of_the_quietest_partition_least() -> None:
    sequences = Sequences(max_last=3)
    receive(sequences, 0, of=b"a")
    receive(sequences, 0, of=b"b", key=OTHER)
    receive(sequences, 0, of=b"c", key=OTHER)

    receive(sequences, 0, of=b"d", key=OTHER)  # instead of a

    assert receive(sequences, 9, of=b"a") == 0  # instead of b
    assert receive(sequences, 9, of=b"b", key=OTHER) == 0  # instead of a
    assert receive(sequences, 9, of=b"d", key=OTHER) == 1


def test_what_is_forgotten_makes_room() -> None:
    sequences = Sequences(max_last=2)
    receive(sequences, 0, of=b"a", key=OTHER)
    receive(sequences, 0, of=b"b")
    sequences.forget(KEY)

    receive(sequences, 0, of=b"c")

    assert receive(sequences, 2, of=b"a", key=OTHER) == 1


def test_a_partition_of_which_all_is_forgotten_is_forgotten_too() -> None:
    sequences = Sequences(max_last=1)

    receive(sequences, 0, of=b"a")
    receive(sequences, 0, of=b"b", key=OTHER)
    receive(sequences, 0, of=b"c", key=THIRD)

    assert receive(sequences, 2, of=b"c", key=THIRD) == 1


def test_what_gave_way_is_counted_no_more() -> None:
    sequences = Sequences(max_last=2)
    receive(sequences, 0, of=b"a")
    receive(sequences, 0, of=b"b", key=OTHER)
    receive(sequences, 0, of=b"c", key=THIRD)  # instead of a
    sequences.forget(OTHER)

    receive(sequences, 0, of=b"d")

    assert receive(sequences, 2, of=b"c", key=THIRD) == 1
