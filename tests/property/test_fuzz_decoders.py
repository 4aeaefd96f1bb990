"""Every decoder, on bytes it was not meant for: random, cut, flipped, spliced.

Whatever the bytes, a decoder returns a value or raises `FormatError`, within bounded memory.
Where it returns a value from damaged bytes, those bytes no longer match the checksum, which is
what readers check first; so here the decoders are tested as if there were no checksum.

In CI the examples are the same on every run. `python tests/fuzz/fuzz_decoders.py --seconds 60`
goes on with fresh ones, starting from the vectors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blobmsg.format import Codec, crc32
from tests.helpers.fuzz_targets import DECODERS, Decoder, mutate, seeds

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = 400
fuzzing: Callable[[Callable[..., None]], Callable[..., None]] = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

SEEDS = seeds()
every_decoder = pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)


@every_decoder
def test_seeds_are_accepted(decoder: Decoder) -> None:
    # Otherwise the mutations below start from bytes that are refused at the first check.
    assert SEEDS[decoder.name]
    for seed in SEEDS[decoder.name]:
        assert decoder.decode(seed) is not None


@every_decoder
@fuzzing
@given(data=st.binary(max_size=300))
def test_random_bytes_are_refused_or_read(decoder: Decoder, data: bytes) -> None:
    decoder.decode(data)


@every_decoder
@fuzzing
@given(data=st.data())
def test_mutated_bytes_are_refused_or_read(decoder: Decoder, data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from(SEEDS[decoder.name]))
    mutated = seed
    for _ in range(data.draw(st.integers(1, 4))):
        mutated = mutate(mutated, data.draw(st.randoms(use_true_random=False)))

    decoder.decode(mutated)


@every_decoder
@fuzzing
@given(data=st.data())
def test_cut_bytes_are_refused(decoder: Decoder, data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from(SEEDS[decoder.name]))
    cut = seed[: data.draw(st.integers(0, len(seed) - 1))]

    # Text of others is legal as committed metadata, and a shorter number is a number.
    assert decoder.decode(cut) is None or decoder.accepts_prefixes


@every_decoder
def test_every_flipped_bit_is_refused_or_caught_by_the_checksum(decoder: Decoder) -> None:
    for seed in SEEDS[decoder.name][:3]:
        for place in range(min(len(seed), 200)):
            for bit in range(8):
                flipped = bytearray(seed)
                flipped[place] ^= 1 << bit
                decoder.decode(bytes(flipped))
                assert crc32(flipped) != crc32(seed)


@every_decoder
def test_values_at_the_edge_of_every_integer_are_refused_or_read(decoder: Decoder) -> None:
    edges = [b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x80\0\0\0", b"\0\0\0\x80"]
    for seed in SEEDS[decoder.name][:3]:
        for place in range(min(len(seed), 300)):
            for edge in edges:
                decoder.decode(seed[:place] + edge + seed[place + 4 :])


def test_the_codecs_are_among_the_decoders() -> None:
    assert {codec.name.lower() for codec in Codec} <= {decoder.name for decoder in DECODERS}
