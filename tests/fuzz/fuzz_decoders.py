"""Feeds every decoder with mutated vectors until the time is over.

    python tests/fuzz/fuzz_decoders.py [--seconds 60] [--seed 1] [--only notification]
    python tests/fuzz/fuzz_decoders.py --replay notification 00ff…

A finding is any exception but `FormatError`, or memory far beyond the input: it prints the
bytes and the command that repeats it, and the exit code is 1. With the package `atheris`
installed, `--coverage CORPUS --only DECODER` lets libFuzzer steer by coverage instead of by
chance, and keeps what it found worth keeping in the folder CORPUS.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.helpers.fuzz_targets import DECODERS, Decoder, mutate, seeds

# Decoding may build a Python object per byte at worst; beyond this something believed a claim.
MEMORY_BYTES_PER_BYTE = 200
MEMORY_BYTES_FREE = 2 << 20
KEEP_SEEDS = 500


def finding(decoder: Decoder, data: bytes) -> str | None:
    """What is wrong with how a decoder takes these bytes; None: nothing."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    try:
        decoder.decode(data)
    except BaseException as error:  # noqa: BLE001  (any exception at all is the finding)
        return f"{type(error).__name__}: {error}"
    _, peak = tracemalloc.get_traced_memory()
    if peak - before > MEMORY_BYTES_FREE + MEMORY_BYTES_PER_BYTE * len(data):
        return f"{peak - before} bytes of memory for {len(data)} bytes of input"
    return None


def report(decoder: Decoder, data: bytes, what: str) -> None:
    sys.stderr.write(
        f"{decoder.name}: {what}\n"
        f"  python tests/fuzz/fuzz_decoders.py --replay {decoder.name} {data.hex()}\n"
    )


def by_chance(decoders: list[Decoder], seconds: float, seed: int) -> int:
    chance = random.Random(seed)
    corpus: dict[str, list[bytes]] = seeds()
    accepted = tried = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for decoder in decoders:
            known = corpus[decoder.name]
            data = chance.choice(known)
            for _ in range(chance.randint(1, 6)):
                data = mutate(data, chance)[:100_000]
            tried += 1
            what = finding(decoder, data)
            if what is not None:
                report(decoder, data, what)
                return 1
            # What is still accepted after a mutation leads to places the vectors don't reach.
            if decoder.decode(data) is not None:
                accepted += 1
                if len(known) < KEEP_SEEDS:
                    known.append(data)
    sys.stdout.write(f"{tried} inputs, {accepted} accepted, no finding (seed {seed})\n")
    return 0


def by_coverage(name: str, seconds: float, corpus: Path) -> None:
    try:
        steer: Any = importlib.import_module("atheris")
    except ImportError:
        raise SystemExit("--coverage needs the package atheris: pip install atheris") from None
    # Imported again, so that libFuzzer sees the branches of our code, and of nothing else.
    for module in [m for m in sys.modules if m.startswith(("blobmsg", "tests.helpers.fuzz"))]:
        del sys.modules[module]
    with steer.instrument_imports(include=["blobmsg.format"]):
        targets = importlib.import_module("tests.helpers.fuzz_targets")
    decoder: Decoder = {decoder.name: decoder for decoder in targets.DECODERS}[name]

    def one_input(data: bytes) -> None:
        what = finding(decoder, data)
        if what is not None:
            report(decoder, data, what)
            raise AssertionError(what)

    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds()[name]):
        (corpus / f"vector-{number}").write_bytes(seed)
    options = [f"-max_total_time={int(seconds)}", "-max_len=4096", "-verbosity=1", str(corpus)]
    steer.Setup([sys.argv[0], *options], one_input)
    steer.Fuzz()  # ends the process


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--only", choices=[decoder.name for decoder in DECODERS])
    parser.add_argument("--coverage", type=Path, metavar="CORPUS", help="needs atheris, --only")
    parser.add_argument("--replay", nargs=2, metavar=("DECODER", "HEX"))
    asked = parser.parse_args()
    by_name = {decoder.name: decoder for decoder in DECODERS}
    tracemalloc.start()
    if asked.replay:
        what = finding(by_name[asked.replay[0]], bytes.fromhex(asked.replay[1]))
        sys.stdout.write(f"{what or 'no finding'}\n")
        return int(what is not None)
    decoders = [by_name[asked.only]] if asked.only else DECODERS
    if asked.coverage:
        if not asked.only:
            parser.error("--coverage steers one decoder: say which with --only")
        by_coverage(asked.only, asked.seconds, asked.coverage)
        return 0
    return by_chance(decoders, asked.seconds, asked.seed)


if __name__ == "__main__":
    sys.exit(main())
