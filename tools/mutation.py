#!/usr/bin/env python3
"""Changes the cores a little, one change at a time, and counts how many the tests notice.

The changes are those of `tools/mutants.py`. A mutant meets, until something notices it: the unit
tests of its module, those of all cores, runs of the simulation, property tests. All of it happens
in forked processes. Where the change is inside of a function, the tests are collected once, a child
gives that function its new code, wherever it is known by then, and runs the tests that call it; a
change of what is run at import has the module imported anew. A mutant that needs much more of the
processor's time than the code as it is has gone into a loop: "timeout", which is noticed, too.

What came of each is kept in `.mutation/`, so a run goes on where it was interrupted. It is
forgotten when the module changes; those that survived meet the tests again when the tests change.

Mutants that behave as the code does are in `tools/mutation_equivalents.toml`, each with its reason.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib.util
import json
import os
import random
import resource
import select
import signal
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

import tomllib

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence
    from types import FrameType

TOP = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(TOP))

import pytest  # noqa: E402
from hypothesis import HealthCheck, Phase, settings  # noqa: E402

from tools.mutants import Mutant, mutants_of, mutated  # noqa: E402

CORES = TOP / "blobmsg" / "core"
STATE = TOP / ".mutation"
EQUIVALENTS = TOP / "tools" / "mutation_equivalents.toml"
UNIT = "tests/unit/core"
PROPERTY = "tests/property"
# Which modules the property tests drive; the others of that folder are about bytes.
CONCERNS: Final[Mapping[str, frozenset[str]]] = {
    "test_debatcher.py": frozenset({"debatcher", "flow", "prefetch", "sequences", "offsets"}),
    "test_offsets.py": frozenset({"offsets", "positions"}),
    "test_partitioner.py": frozenset({"partitioner"}),
    "test_producer_core.py": frozenset(
        {"batcher", "cutting", "events", "fallback", "kafka_presence", "notifier", "producer_core"}
        | {"router", "segments", "step_fields", "transaction"}
    ),
}
LEAST_OF_ALL: Final = 85
LEAST_OF_A_MODULE: Final = 75
# A mutant may take so many times what the code as it is takes, and a second.
_PATIENCE: Final = 5
# The machine may be busy with others: of wall time much more.
_WALL_S: Final = 600
_SESSION_S: Final = 86_400
_MEMORY_BYTES: Final = 4 << 30
_KILLED, _TIMEOUT, _SURVIVED, _ALONE = "killed", "timeout", "survived", "alone"
_STAGES: Final = ("unit", "units", "sim", "property")


class MutationError(Exception):
    """Nothing can be said about mutants; the text says why."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to do with each mutant.

    Attributes:
        seeds: Of the simulation.
        examples: Of a property test.
        share: Of the mutants.
        seed: Of the choice of them.
    """

    seeds: int = 60
    examples: int = 25
    share: float = 1.0
    seed: int = 0

    def has(self, module: str, mutant: Mutant) -> bool:
        """Whether a mutant belongs to the share."""
        return random.Random(f"{self.seed} {module} {mutant.number}").random() < self.share  # noqa: S311


@dataclass(slots=True)
class Core:
    """One module of the cores, and what is known of its mutants.

    Attributes:
        name: Of the module.
        mutants: All but the equivalent ones.
        outcomes: By the mutant's number, and by what it was noticed.
        equivalent: How many behave as the code does.
    """

    name: str
    mutants: list[Mutant]
    outcomes: dict[int, tuple[str, str]] = field(default_factory=dict[int, tuple[str, str]])
    equivalent: int = 0

    @property
    def path(self) -> Path:
        """Its file."""
        return CORES / f"{self.name}.py"

    @property
    def state(self) -> Path:
        """What came of its mutants, a line each."""
        return STATE / f"{self.name}.jsonl"

    def percent(self) -> float:
        """How many of the mutants that were tried were noticed."""
        counts = Counter(outcome for outcome, _ in self.outcomes.values())
        return 100 * (1 - counts[_SURVIVED] / max(1, counts.total()))


def read_core(name: str) -> Core:
    """Return a module's mutants, without those that are known to be equivalent.

    Raises:
        MutationError: One that is listed as equivalent is not there any more.
    """
    path = CORES / f"{name}.py"
    if not path.exists():
        raise MutationError(f"there is no core {name}")
    source = path.read_text()
    lines = source.splitlines()
    known = [entry for entry in _equivalents() if entry["module"] == name]
    core = Core(name, [])
    used: set[int] = set()
    for mutant in mutants_of(source):
        found = [at for at, entry in enumerate(known) if _is_meant(entry, mutant, lines)]
        used.update(found)
        if found:
            core.equivalent += 1
        else:
            core.mutants.append(mutant)
    for at, entry in enumerate(known):
        if at not in used:
            raise MutationError(f"{EQUIVALENTS.name}: no mutant of {name} is {entry}")
    return core


def _equivalents() -> list[dict[str, str]]:
    entries: list[dict[str, str]] = tomllib.loads(EQUIVALENTS.read_text()).get("equivalent", [])
    return entries


def _is_meant(entry: Mapping[str, str], mutant: Mutant, lines: Sequence[str]) -> bool:
    return (
        entry["function"] == mutant.function
        and entry["change"] == mutant.change
        and entry.get("line", "") in lines[mutant.line - 1]
    )


# --- what is known already ------------------------------------------------------------------------


def load(core: Core, options: Options) -> None:
    """Read what came of the mutants before, as far as it still says something."""
    core.outcomes.clear()
    if not core.state.exists():
        return
    source, tests = _digests(core, options)
    known = {mutant.number for mutant in core.mutants}
    for line in core.state.read_text().splitlines():
        entry = json.loads(line)
        is_stale = entry["outcome"] == _SURVIVED and entry["tests"] != tests
        if entry["source"] == source and entry["mutant"] in known and not is_stale:
            core.outcomes[entry["mutant"]] = entry["outcome"], entry["by"]


def _saver(core: Core, options: Options) -> Callable[[Mutant, list[str], bool], None]:
    """What keeps the outcome of a mutant, against the module and the tests as they are now."""
    source, tests = _digests(core, options)

    def save(mutant: Mutant, lines: list[str], has_ended: bool) -> None:
        outcome, by = _outcome(lines, has_ended=has_ended)
        entry = {"mutant": mutant.number, "outcome": outcome, "by": by}
        with core.state.open("a") as file:
            file.write(json.dumps({**entry, "source": source, "tests": tests}) + "\n")

    return save


def _digests(core: Core, options: Options) -> tuple[str, str]:
    """Of the module with what is done to it, and of the tests."""
    tests = [*sorted((TOP / UNIT).glob("*.py")), *sorted((TOP / PROPERTY).glob("*.py"))]
    source = _digest([core.path, Path(__file__).with_name("mutants.py")])
    return source, f"{_digest(tests)} {options.seeds} {options.examples}"


def _digest(paths: Sequence[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


# --- processes ------------------------------------------------------------------------------------


def _forked(work: Callable[[Callable[[str], None]], None], wall_s: float) -> tuple[list[str], bool]:
    """Do something in a child that may say lines; those lines, and whether it came to its end.

    Raises:
        MutationError: It neither came to its end nor was stopped for the time it took.
    """
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.close(read_end)
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            work(lambda line: _write(write_end, line))
            code = 0
        except BaseException:  # noqa: BLE001  (nothing of the parent's may run here)
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write_end)
    said = b""
    is_stopped = False
    until = time.monotonic() + wall_s
    while select.select([read_end], [], [], max(0.0, until - time.monotonic()))[0]:
        more = os.read(read_end, 65536)
        if not more:
            break
        said += more
    else:
        is_stopped = True
        os.kill(child, signal.SIGKILL)
    os.close(read_end)
    _, status = os.waitpid(child, 0)
    lines = said.decode().splitlines()
    is_stopped |= os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU
    if status and not is_stopped:
        raise MutationError(f"a child ended with status {status}, having said {lines[-3:]}")
    return lines, status == 0


def _write(to: int, line: str) -> None:
    os.write(to, f"{line}\n".encode())


def _silence() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


# --- one mutant -----------------------------------------------------------------------------------


class _FoundError(Exception):
    """Something has noticed the mutant."""


class _Session:
    """Collects the tests, and does with them what it is told instead of running them all."""

    def __init__(self, work: Callable[[_Session], None], options: Options) -> None:
        self._work = work
        self._options = options
        self._items: list[pytest.Item] = []

    def run(self, core: Core) -> None:
        """Collect the tests of a core, and work.

        Raises:
            MutationError: They can't be collected.
        """
        paths = [UNIT, *self._property_paths(core)]
        profile = settings(
            max_examples=self._options.examples,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        settings.register_profile("mutation", profile)
        settings.load_profile("mutation")
        arguments = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-o", "timeout=0"]
        arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # Hypothesis is here
        os.chdir(TOP)
        if pytest.main([*arguments, *paths], plugins=[self]):
            raise MutationError("the tests can't be collected")

    @staticmethod
    def _property_paths(core: Core) -> list[str]:
        return [f"{PROPERTY}/{name}" for name, cores in CONCERNS.items() if core.name in cores]

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Make property tests smaller that say themselves how large they are."""
        for module in {getattr(item, "module", None) for item in items}:
            for name, value in list(vars(module).items()):
                if isinstance(value, settings):
                    setattr(module, name, settings(value, max_examples=self._options.examples))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Work."""
        self._items = session.items
        self._work(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test of a child has ended."""
        if report.failed:
            raise _FoundError(report.nodeid)

    def trace(self, file: str, say: Callable[[str], None]) -> None:
        """Run the unit tests and say which functions of a file each of them calls."""
        for number, item in enumerate(self._items):
            if not item.nodeid.startswith(UNIT):
                continue
            names: set[str] = set()

            def called(frame: FrameType, *_: object, names: set[str] = names) -> None:
                if frame.f_code.co_filename == file:
                    names.add(_function_of(frame.f_code))

            sys.setprofile(called)
            try:
                self._test([item])
            finally:
                sys.setprofile(None)
            if names:
                say(f"{number} {' '.join(names)}")

    def stages(
        self, core: Core, reached: Container[int] | None
    ) -> Iterator[tuple[str, Callable[[], None]]]:
        """What a mutant has to pass, by name.

        Args:
            core: Its module.
            reached: The unit tests that call the function that it is in; None: all do.
        """
        own = f"{UNIT}/test_{core.name}.py"
        groups: dict[str, list[pytest.Item]] = {name: [] for name in _STAGES}
        for number, item in enumerate(self._items):
            path = item.nodeid.partition("::")[0]
            if path.startswith(UNIT) and reached is not None and number not in reached:
                continue
            name = "unit" if path == own else "units" if path.startswith(UNIT) else "property"
            groups[name].append(item)
        for name in _STAGES:
            if name == "sim":
                yield name, self._simulate
            elif groups[name]:
                yield name, partial(self._test, groups[name])

    @staticmethod
    def _test(items: Sequence[pytest.Item]) -> None:
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def _simulate(self) -> None:
        from blobmsg.sim.plan import draw_plan
        from blobmsg.sim.simulation import run_plan

        for seed in range(self._options.seeds):
            outcome = run_plan(draw_plan(seed))
            if outcome.violation:
                raise _FoundError(f"seed {seed}: {outcome.violation}")


def _pass_all(
    session: _Session,
    core: Core,
    limits: Mapping[str, float],
    say: Callable[[str], None],
    reached: Container[int] | None = None,
) -> None:
    """Run one stage after the other and say how long each took, until one fails."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    for name, run in session.stages(core, reached):
        started = time.process_time()
        if name in limits:
            _, hard = resource.getrlimit(resource.RLIMIT_CPU)
            soft = int(started + limits[name]) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
        try:
            run()
        except _FoundError as found:
            say(f"killed {found}")
            return
        except BaseException as error:  # noqa: BLE001  (in pytest itself, by what a mutant did)
            say(f"killed {type(error).__name__}")
            return
        say(f"passed {name} {time.process_time() - started:.3f}")


def _outcome(lines: Sequence[str], *, has_ended: bool) -> tuple[str, str]:
    """What became of a mutant, and what noticed it."""
    for line in lines:
        word, _, text = line.partition(" ")
        if word in (_KILLED, _ALONE):
            return word, " ".join(text.split())[:200]
    return (_SURVIVED, "") if has_ended else (_TIMEOUT, "")


def _limits(lines: Sequence[str]) -> dict[str, float]:
    """How long each stage may take, of what it takes as the code is."""
    found: dict[str, float] = {}
    for line in lines:
        word, _, text = line.partition(" ")
        if word != "passed":
            raise MutationError(f"as the code is: {line}")
        name, _, took = text.partition(" ")
        found[name] = 1 + _PATIENCE * float(took)
    return found


# --- mutants in functions -------------------------------------------------------------------------


def _try_in_bodies(
    core: Core, mutants: Sequence[Mutant], options: Options, _say: Callable[[str], None]
) -> None:
    """Try mutants that are inside of functions; all in one session."""

    def work(session: _Session) -> None:
        module = importlib.import_module(f"blobmsg.core.{core.name}")
        importlib.import_module("blobmsg.sim.simulation")
        source = core.path.read_text()
        functions = _functions_of(str(module.__file__))
        gc.freeze()
        lines, has_ended = _forked(partial(_pass_all, session, core, {}), _WALL_S)
        limits = _limits(lines)
        if not has_ended:
            raise MutationError(f"as the code is the tests do not end: {lines}")
        reach: dict[str, set[int]] = {}
        for line in _forked(partial(session.trace, str(module.__file__)), _WALL_S)[0]:
            number, *names = line.split()
            for name in names:
                reach.setdefault(name, set()).add(int(number))
        print(
            f"{core.name}: {len(mutants)} mutants in functions; as the code is the tests take "
            + ", ".join(
                f"{name} {(limit - 1) / _PATIENCE:.1f} s" for name, limit in limits.items()
            ),
            file=out,
        )
        for mutant in mutants:

            def run(say: Callable[[str], None], mutant: Mutant = mutant) -> None:
                try:
                    _give_code(functions, str(module.__file__), source, mutant)
                except ValueError:  # it has other variables of the function around it
                    say(_ALONE)
                    return
                _pass_all(session, core, limits, say, reach.get(mutant.function, ()))

            save(mutant, *_forked(run, _WALL_S))

    save = _saver(core, options)
    out = os.fdopen(os.dup(1), "w", buffering=1)
    _silence()  # pytest says of each child what fails there
    _Session(work, options).run(core)


def _functions_of(file: str) -> dict[tuple[str, int], list[FunctionType]]:
    """All functions of a file that are there now, by name and line."""
    found: dict[tuple[str, int], list[FunctionType]] = {}
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and thing.__code__.co_filename == file:
            code = thing.__code__
            found.setdefault((code.co_qualname, code.co_firstlineno), []).append(thing)
    return found


def _give_code(
    functions: Mapping[tuple[str, int], Sequence[FunctionType]],
    file: str,
    source: str,
    mutant: Mutant,
) -> None:
    """Give the functions of a module the code that they have with a mutant."""
    for code in _codes(compile(mutated(source, mutant.number), file, "exec", dont_inherit=True)):
        for function in functions.get((code.co_qualname, code.co_firstlineno), ()):
            function.__code__ = code


def _function_of(code: CodeType) -> str:
    """The function that code belongs to: of a comprehension or a lambda the one around it."""
    parts = code.co_qualname.split(".")
    return ".".join(part for part in parts if not part.startswith("<"))


def _codes(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from _codes(inner)


# --- mutants of what is run at import -------------------------------------------------------------


class _MutantLoader(SourceFileLoader):
    """Loads a module with a mutant in it."""

    def __init__(self, core: Core, mutant: Mutant) -> None:
        super().__init__(f"blobmsg.core.{core.name}", str(core.path))
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        """Return the mutant's code, not what is cached beside the file."""
        tree = mutated(Path(self.path).read_text(), self._mutant.number)
        return compile(tree, self.path, "exec", dont_inherit=True)


class _MutantFinder:
    """Finds one module, with a mutant in it."""

    def __init__(self, core: Core, mutant: Mutant) -> None:
        self._loader = _MutantLoader(core, mutant)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """As the import system asks for it."""
        if name != self._loader.name:
            return None
        return importlib.util.spec_from_file_location(name, self._loader.path, loader=self._loader)


def _try_at_import(core: Core, mutants: Sequence[Mutant], options: Options) -> None:
    """Try mutants that are run at import: a process each that imports everything."""
    if "blobmsg" in sys.modules:
        raise AssertionError("the cores are imported here already")

    def run(limits: Mapping[str, float], mutant: Mutant | None, say: Callable[[str], None]) -> None:
        _silence()
        if mutant is not None:
            sys.meta_path.insert(0, _MutantFinder(core, mutant))
        try:
            _Session(lambda session: _pass_all(session, core, limits, say), options).run(core)
        except MutationError:
            say("killed at import")

    save = _saver(core, options)
    lines, _ = _forked(partial(run, {}, None), _WALL_S)
    limits = _limits(lines)
    print(f"{core.name}: {len(mutants)} mutants at import", flush=True)
    for mutant in mutants:
        save(mutant, *_forked(partial(run, limits, mutant), _WALL_S))


# --- the run --------------------------------------------------------------------------------------


def _missing(core: Core, options: Options) -> list[Mutant]:
    """The mutants of the share of which nothing is known."""
    load(core, options)
    return [
        mutant
        for mutant in core.mutants
        if options.has(core.name, mutant)
        and core.outcomes.get(mutant.number, (_ALONE,))[0] == _ALONE
    ]


def try_all(cores: Sequence[Core], options: Options) -> None:
    """Try all mutants of which nothing is known; those that take longest come last."""
    STATE.mkdir(exist_ok=True)
    for core in cores:
        known = core.outcomes
        mutants = [m for m in _missing(core, options) if m.is_in_body and m.number not in known]
        if mutants:
            work = partial(_try_in_bodies, core, mutants, options)
            _, has_ended = _forked(work, _SESSION_S)
            if not has_ended:
                raise MutationError(f"{core.name} was given up")
    for core in cores:
        mutants = _missing(core, options)
        if mutants:
            _try_at_import(core, mutants, options)
        load(core, options)


def report(cores: Sequence[Core], options: Options) -> bool:
    """Print what came of the mutants; whether enough of them were noticed."""
    print("\n| module | mutants | killed | timeout | survived | noticed |")
    print("|---|---|---|---|---|---|")
    every: Counter[str] = Counter()
    is_enough = True
    for core in cores:
        chosen = {m.number for m in core.mutants if options.has(core.name, m)}
        core.outcomes = {at: found for at, found in core.outcomes.items() if at in chosen}
        counts = Counter(outcome for outcome, _ in core.outcomes.values())
        every += counts
        if counts.total():
            print(_row(core.name, counts))
            is_enough &= core.percent() >= LEAST_OF_A_MODULE
    print(_row("all", every))
    print(f"\nequivalent by the list: {sum(core.equivalent for core in cores)}")
    for core in cores:
        lines = core.path.read_text().splitlines()
        for mutant in core.mutants:
            if core.outcomes.get(mutant.number, ("",))[0] == _SURVIVED:
                print(f"\n{core.name}.py:{mutant.line} {mutant.function} ({mutant.number})")
                print(f"    {lines[mutant.line - 1].strip()}")
                print(f"    {mutant.change}")
    missing = sum(outcome == _SURVIVED for core in cores for outcome, _ in core.outcomes.values())
    return is_enough and 100 * missing <= (100 - LEAST_OF_ALL) * every.total()


def _row(name: str, counts: Counter[str]) -> str:
    total = counts.total()
    percent = 100 * (1 - counts[_SURVIVED] / max(1, total))
    numbers = " | ".join(str(counts[word]) for word in (_KILLED, _TIMEOUT, _SURVIVED))
    return f"| {name} | {total} | {numbers} | {percent:.1f} % |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for and return the exit code."""
    names = sorted(path.stem for path in CORES.glob("*.py") if path.stem != "__init__")
    parser = argparse.ArgumentParser(
        prog="tools/mutation.py",
        description="Change the cores a little, one change at a time, and count how many changes "
        f"the tests notice: at least {LEAST_OF_ALL} % of all and {LEAST_OF_A_MODULE} % of each.",
    )
    parser.add_argument("modules", nargs="*", help=f"of {', '.join(names)} (default: all)")
    parser.add_argument("--share", type=float, default=1.0, help="try only so many (0.1: a tenth)")
    parser.add_argument("--seed", type=int, default=0, help="which ones these are")
    parser.add_argument("--sim-seeds", type=int, default=60, help="runs of the simulation")
    parser.add_argument("--examples", type=int, default=25, help="of each property test")
    parser.add_argument("--fresh", action="store_true", help="forget what is known")
    parser.add_argument("--report", action="store_true", help="only show what is known")
    chosen = parser.parse_args(arguments)
    options = Options(chosen.sim_seeds, chosen.examples, chosen.share, chosen.seed)
    try:
        cores = [read_core(name) for name in chosen.modules or names]
        for core in cores:
            if chosen.fresh:
                core.state.unlink(missing_ok=True)
            load(core, options)
        if not chosen.report:
            try_all(cores, options)
    except MutationError as problem:
        print(f"mutation: {problem}", file=sys.stderr)
        return 1
    return 0 if report(cores, options) else 1


if __name__ == "__main__":
    sys.exit(main())
