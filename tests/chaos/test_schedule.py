from __future__ import annotations

import itertools
import random
import threading

import pytest

from tests.chaos.schedule import KAFKA_FAULTS, PROBABILITIES, Step, schedule, short_schedule
from tests.chaos.store_faults import STORE_FAULTS, store_rule
from tests.helpers.fault_proxy import Request

SEEDS = range(20)
#: Members of one group must have time to take over before the next one is killed.
APART_S = 7.0


def _steps(seed: int, count: int = 100) -> list[Step]:
    return list(itertools.islice(schedule(seed), count))


def test_one_seed_is_one_schedule() -> None:
    assert _steps(3) == _steps(3)
    assert _steps(3) != _steps(4)
    assert short_schedule(3) == short_schedule(3)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_fault_comes_at_every_probability(seed: int) -> None:
    steps = _steps(seed)

    hit = {(step.store, step.probability) for step in steps}
    assert hit >= set(itertools.product(STORE_FAULTS, PROBABILITIES))
    assert {step.kafka for step in steps} == {"", *KAFKA_FAULTS}
    done = {(child.action, child.role) for step in steps for child in step.children}
    assert len(done) == 9
    assert {step.zombie for step in steps} == {None, 0, 1}
    assert any(step.seconds > 60 for step in steps)


@pytest.mark.parametrize("seed", SEEDS)
def test_members_of_a_group_are_hurt_one_at_a_time(seed: int) -> None:
    """Across steps, too; between two there is time to catch up besides."""
    for role in ("writer", "reader", "transformer"):
        began_s, times = 0.0, list[float]()
        for step in _steps(seed):
            at_s = [child.at_s for child in step.children if child.role == role]
            assert all(0 < each < step.seconds for each in at_s)
            times += [began_s + each for each in at_s]
            began_s += step.seconds
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert all(gap >= APART_S - 0.01 for gap in gaps)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_short_schedule_kills_each_role_and_makes_a_zombie(seed: int) -> None:
    steps = short_schedule(seed)

    killed = [child.role for step in steps for child in step.children if child.action == "kill"]
    assert sorted(killed) == ["reader", "transformer", "writer"]
    assert sum(step.zombie is not None for step in steps) == 1
    assert all(step.store for step in steps)


@pytest.mark.parametrize("name", STORE_FAULTS)
def test_a_store_fault_hits_its_share_of_the_requests(name: str) -> None:
    rng = random.Random(1)
    rules = {p: store_rule(name, p, rng, threading.Event()) for p in PROBABILITIES}
    request = Request(0, "GET", "/bucket/key", 0, "")

    hits = {p: sum(rule(request) is not None for _ in range(1000)) for p, rule in rules.items()}

    assert hits[1.0] == 1000
    assert 100 < hits[0.2] < 300


def test_an_unknown_store_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="earthquake"):
        store_rule("earthquake", 1.0, random.Random(1), threading.Event())
