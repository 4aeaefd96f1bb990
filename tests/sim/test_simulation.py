"""Hundreds of seeds keep all rules; a seed is a trace; what fails is repeated and made smaller."""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from blobmsg.sim import __main__ as program
from blobmsg.sim.history import History
from blobmsg.sim.plan import Fault, Plan, dense, draw_plan
from blobmsg.sim.shrink import command_of, shrink, with_changes
from blobmsg.sim.simulation import Outcome, run_plan
from blobmsg.sim.system import System
from blobmsg.sim.world import Chance, World

if TYPE_CHECKING:
    from pathlib import Path

AT_ONCE = 20
# Two transformers, transactions, eight faults.
_RICH_SEED = 3
_OF_TRANSFORMERS = {"committed", "aborted", "killed", "fenced", "UNKNOWN_MEMBER_ID"}
SEEDS = 300


@pytest.mark.timeout(120)
@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_all_rules_hold(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        outcome = run_plan(draw_plan(seed))
        assert not outcome.violation, f"{outcome.violation}\n{command_of(outcome.plan)}"
        assert outcome.records > 0


def test_the_same_seed_gives_the_same_trace() -> None:
    for seed in (3, 13, 28):
        first, second = run_plan(draw_plan(seed)), run_plan(draw_plan(seed))

        assert first.trace == second.trace
        assert first.digest == second.digest


def test_nothing_of_a_run_outlives_it() -> None:
    def worlds() -> int:
        gc.collect()
        return sum(isinstance(thing, World) for thing in gc.get_objects())

    before = worlds()
    run_plan(draw_plan(_RICH_SEED))  # with processes that are killed while their callers wait

    assert worlds() == before


@pytest.mark.parametrize("commits", ["sync", "stored"])
def test_a_last_record_that_nobody_got_is_missed(
    commits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(draw_plan(_RICH_SEED), faults=(), transformers=0, commits=commits)
    got = [line for line in run_plan(plan).trace if line[1] == "got"]
    consumer, *last = got[-1][2:]
    delivered = History.delivered

    def all_but_it(history: History, name: str, message: Any) -> None:
        if [name, message.topic(), message.partition(), message.offset()] != [consumer, *last]:
            delivered(history, name, message)

    monkeypatch.setattr(History, "delivered", all_but_it)
    violation = run_plan(plan).violation

    assert violation.startswith(f"{consumer} is at ")


def test_other_seeds_give_other_traces() -> None:
    digests = {run_plan(draw_plan(seed)).digest for seed in range(10)}

    assert len(digests) == 10


@pytest.mark.timeout(120)
def test_a_trace_does_not_hang_on_hashes_or_the_process() -> None:
    digests = set()
    for hash_seed in ("0", "1", "4711"):
        done = subprocess.run(
            [sys.executable, "-m", "blobmsg.sim", "--seed", str(_RICH_SEED)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        [line] = [line for line in done.stdout.splitlines() if "digest" in line]
        digests.add(line)

    assert len(digests) == 1


def test_seeds_meet_every_kind_of_fault() -> None:
    plans = [draw_plan(seed) for seed in range(SEEDS)]
    kinds = {fault.kind for plan in plans for fault in plan.faults}

    assert {
        "outage", "hang", "lost", "slow", "corrupt", "net-lost", "net-slow", "net-leader",
        "net-calls", "net-stale", "forge", "kill-producer", "kill-consumer", "pause-producer",
        "pause-consumer", "join-consumer", "leave-consumer", "hide", "retention", "fence",
        "stall-transformer",
    } <= kinds  # fmt: skip
    assert any(plan.is_transactional for plan in plans)
    assert {plan.transformers for plan in plans} == {0, 1, 2}


def test_a_dense_plan_has_the_same_steps_with_more_records_in_each() -> None:
    plan = replace(draw_plan(8, 100), faults=(), transformers=0)

    thin, thick = run_plan(plan), run_plan(dense(plan, 10))

    assert not thick.violation
    assert thick.records >= 9 * thin.records
    assert len(thick.trace) < 2.5 * thick.records  # sent and got, and little else: batches are long
    assert {draw_plan(seed).density for seed in range(SEEDS)} == {1, 10}


def test_copies_meet_what_could_make_them_inexact() -> None:
    """So that the rule has something to say: transformers abort, die, are fenced and expelled."""
    seen: set[str] = set()
    for seed in range(SEEDS):
        plan = draw_plan(seed)
        if plan.transformers and plan.faults and not seen >= _OF_TRANSFORMERS:
            outcome = run_plan(plan)
            assert not outcome.violation
            lines = [line[1:] for line in outcome.trace if str(line[2]).startswith("x")]
            seen.update(word for line in lines for word in line if isinstance(word, str))

    assert seen >= _OF_TRANSFORMERS


def test_chance_is_as_pythons_number_for_number() -> None:
    ours, theirs = Chance("a seed"), random.Random("a seed")
    for width in (1, 2, 3, 10, 1000, 1 << 70):
        assert [ours.randint(-1, width - 2) for _ in range(20)] == [
            theirs.randint(-1, width - 2) for _ in range(20)
        ]
    for things in ("a", "abc", "abcdefgh"):
        assert [ours.choice(things) for _ in range(20)] == [
            theirs.choice(things) for _ in range(20)
        ]
    with pytest.raises(IndexError):
        ours.choice("")


# --- repeating and shrinking ------------------------------------------------------------------


def test_the_command_repeats_a_changed_plan() -> None:
    seed = next(seed for seed in range(100) if len(draw_plan(seed).faults) >= 3)
    whole = draw_plan(seed)
    smaller = replace(whole, records=7, commits="sync", faults=whole.faults[1:2])
    words = command_of(smaller).split()
    changes = dict(
        words[place + 1].split("=") for place, word in enumerate(words) if word == "--set"
    )
    without = words[words.index("--without") + 1]

    repeated = with_changes(whole, [int(n) for n in without.split(",")], changes)

    assert repeated == smaller


def test_shrinking_keeps_only_what_a_failure_needs() -> None:
    seed = next(seed for seed in range(200) if len(draw_plan(seed).faults) >= 5)
    plan = draw_plan(seed)
    guilty = plan.faults[2]

    def fails(tried: Plan) -> bool:
        return guilty in tried.faults and tried.records >= 5

    smaller = shrink(plan, fails)

    assert smaller.faults == (guilty,)
    assert smaller.records == 5
    assert (smaller.producers, smaller.consumers, smaller.partitions) == (1, 1, 1)


def test_unknown_changes_are_refused() -> None:
    with pytest.raises(ValueError, match="no 'recrods'"):
        with_changes(draw_plan(1), [], {"recrods": "1"})


# --- the command line -------------------------------------------------------------------------


def test_an_interrupted_run_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state.json"
    assert program.main(["--seeds", "0:3", "--state", str(state)]) == 0
    kept = json.loads(state.read_text())
    state.write_text(json.dumps({**kept, "next": 2}))
    capsys.readouterr()

    assert program.main(["--seeds", "0:3", "--state", str(state)]) == 0

    told = capsys.readouterr().out
    assert "goes on at seed 2" in told
    assert told.splitlines()[-1].startswith("1 seeds")


def test_other_code_runs_all_seeds_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state.json"
    state.write_text(json.dumps({"sources": "other", "changes": {}, "next": 2}))

    assert program.main(["--seeds", "0:3", "--state", str(state)]) == 0

    assert capsys.readouterr().out.splitlines()[-1].startswith("3 seeds")


def test_a_failure_is_told_with_commands_that_repeat_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(plan: Plan) -> Outcome:
        return Outcome(plan, "a rule is broken" if plan.records > 3 else "", 1, 1, [])

    monkeypatch.setattr(program, "run_plan", broken)

    assert program.main(["--seeds", "5:9", "--state", str(tmp_path / "state")]) == 1

    told = capsys.readouterr().out
    assert "seed 5: a rule is broken" in told
    assert "repeat: python -m blobmsg.sim --seed 5\n" in told
    assert "smaller: python -m blobmsg.sim --seed 5" in told
    assert "--set records=4" in told


def test_a_mistake_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--seed", "1", "--set", "colour=red"]) == 2
    assert "colour" in capsys.readouterr().err


def test_who_is_leaving_does_not_count_as_there_when_all_is_well_again() -> None:
    system = System(replace(draw_plan(_RICH_SEED), transformers=1))
    system.start()
    (leaving,) = system.living_transformers()

    leaving.leave()  # when its transaction has ended
    system.heal()

    (other,) = [t for t in system.living_transformers() if t is not leaving]
    assert not other.is_leaving


def test_a_fault_is_a_window_of_time() -> None:
    plan = replace(
        draw_plan(1),
        faults=(Fault("outage", 0, 1000, 1.0, 0),),
        route="blob",
        second_route="blob",
        is_transactional=False,
        message_timeout_ms=30_000,
    )

    outcome = run_plan(plan)

    assert not outcome.violation
    stored_ms = [line[0] for line in outcome.trace if line[1] == "stored"]
    assert stored_ms
    assert min(stored_ms) >= 1000
