"""What the Spark bench says in the end: its verdicts and tables. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bench._plan import MEBIBYTE, Requirement, median
from bench._report import fact_list, markdown_table, table
from bench._spark_sides import NATIVE, OURS, S3_SHUFFLE
from bench._store_requests import request_usd
from blobmsg.core.cost import BUILT_IN_PRICES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from bench._plan import Figures

    Runs = Mapping[str, Sequence[Figures]]
    #: By mode, case and side.
    Results = Mapping[str, Mapping[str, Mapping[str, Any]]]

__all__ = ["PLAIN", "difference", "judge", "page_section", "terminal_text"]

#: The case that is judged alone; the others by the worst of them.
PLAIN = "random"
#: What a reduce task may hold beside its prefetched bytes.
SEGMENT_BYTES = 16 * MEBIBYTE

_HEADERS = (
    *("where, what", "side", "wall s", "min..max", "client CPU s", "store CPU s"),
    *("native shuffle MiB", "remote MiB", "requests", "USD/1000 jobs"),
)


def difference(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> int:
    """How many rows are in one of them more often than in the other, all occurrences counted.

    Args:
        one: A row of numbers per row.
        other: Likewise, of as many columns.
    """
    rows, places = np.unique(np.concatenate([one, other]), axis=0, return_inverse=True)
    counts = np.zeros(len(rows), np.int64)
    np.add.at(counts, places.reshape(-1)[: len(one)], 1)
    np.subtract.at(counts, places.reshape(-1)[len(one) :], 1)
    return int(np.abs(counts).sum())


def request_cost(figures: Figures) -> float:
    """USD of the requests of one run, as the store counted them."""
    return request_usd(figures["requests"], BUILT_IN_PRICES)


def _cpu(figures: Figures) -> float:
    return float(figures["cpu_s"])


def _wall(figures: Figures) -> float:
    return float(figures["wall_s"])


def _ratio(runs: Runs, other: str, figure: Callable[[Figures], float]) -> float | None:
    """Ours to the other's, round by round: what slows the machine down slows both of a round."""
    if other not in runs or OURS not in runs:
        return None
    pairs = zip(runs[OURS], runs[other], strict=True)
    return float(np.median([figure(ours) / figure(its) for ours, its in pairs]))


def _worst(found: Iterable[tuple[str, float | None]]) -> tuple[str, float | None]:
    known = [(name, value) for name, value in found if value is not None]
    return max(known, key=lambda one: one[1]) if known else ("none", None)


def judge(
    results: Results, differences: Mapping[str, int], memory: Mapping[str, Any] | None
) -> list[Requirement]:
    """Decide on everything that must be reached.

    Args:
        results: The runs of each mode, case and side.
        differences: Rows that differ from native's, by mode, case and side.
        memory: What reducers took; None: not measured.
    """
    found = [
        Requirement(
            f"rows that differ from native's, {len(differences)} comparisons",
            0,
            float(sum(differences.values())) if differences else None,
            False,
            "{:.0f}",
        )
    ]
    against = (
        (S3_SHUFFLE, "client CPU", 0.75, _cpu),
        (S3_SHUFFLE, "wall", 0.95, _wall),
        (S3_SHUFFLE, "request cost", 0.5, request_cost),
        (NATIVE, "wall", 1.6, _wall),
        (NATIVE, "client CPU", 1.0, _cpu),
    )
    for mode, cases in results.items():
        name, share = _worst((name, _native_share(case)) for name, case in cases.items())
        found.append(
            Requirement(
                f"{mode}: Spark's own shuffle bytes, share of the payload (most: {name})",
                1 / 5000,
                share,
                False,
                "{:.6f}",
            )
        )
        for other, what, limit, figure in against:
            text = f"{mode}: {what}, ours / {other}"
            ratios = {name: _ratio(case["runs"], other, figure) for name, case in cases.items()}
            plain = ratios.pop(PLAIN, None)
            found.append(Requirement(f"{text}, {PLAIN}", limit, plain, False))
            name, worst = _worst(ratios.items())
            found.append(Requirement(f"{text}, worst of the others ({name})", limit, worst, False))
    for name, one in (memory or {}).items():
        allowed = one["prefetch_bytes"] + SEGMENT_BYTES
        text = f"MiB that a reduce task takes, {name}: prefetch and a segment"
        taken = one["most_bytes"] - one["base_bytes"]
        found.append(Requirement(text, allowed / MEBIBYTE, taken / MEBIBYTE, False, "{:.0f}"))
    return found


def _native_share(case: Mapping[str, Any]) -> float | None:
    runs = case["runs"].get(OURS)
    return median(runs, "shuffle_bytes") / case["payload_bytes"] if runs else None


def _rows(results: Results) -> list[list[str]]:
    return [
        [f"{mode}, {name}", side, *_cells(runs)]
        for mode, cases in results.items()
        for name, case in cases.items()
        for side, runs in case["runs"].items()
    ]


def _cells(runs: Sequence[Figures]) -> list[str]:
    walls = [run["wall_s"] for run in runs]
    requests = runs[len(runs) // 2]["requests"]
    usd = float(np.median([request_cost(run) for run in runs]))
    return [
        f"{median(runs, 'wall_s'):.1f}",
        f"{min(walls):.1f}..{max(walls):.1f}",
        f"{median(runs, 'cpu_s'):.1f}",
        f"{median(runs, 'store_cpu_s'):.1f}" if "store_cpu_s" in runs[0] else "-",
        f"{median(runs, 'shuffle_bytes') / MEBIBYTE:,.2f}",
        f"{median(runs, 'remote_bytes') / MEBIBYTE:,.2f}",
        ", ".join(f"{count} {kind}" for kind, count in sorted(requests.items()) if count) or "none",
        f"{usd * 1000:.3f}",
    ]


def _tables(results: Mapping[str, Any]) -> list[tuple[tuple[str, ...], list[list[str]]]]:
    tables: list[tuple[tuple[str, ...], list[list[str]]]] = [(_HEADERS, _rows(results["cases"]))]
    if results.get("memory"):
        rows = [
            [
                name,
                f"{one['prefetch_bytes'] / MEBIBYTE:.0f}",
                f"{one['base_bytes'] / MEBIBYTE:.0f}",
                f"{one['most_bytes'] / MEBIBYTE:.0f}",
            ]
            for name, one in results["memory"].items()
        ]
        heads = ("a reduce task", "prefetch_bytes, MiB", "of few rows, MiB", "most, MiB")
        tables.append((heads, rows))
    return tables


def terminal_text(results: Mapping[str, Any], requirements: Sequence[Requirement]) -> str:
    """Everything for the terminal."""
    blocks = [table(headers, rows) for headers, rows in _tables(results)]
    blocks.append("\n".join(f"{name + ':':13} {text}" for name, text in results["about"].items()))
    blocks += [f"SKIPPED: {text}" for text in results["skipped"]]
    blocks.append("\n".join(requirement.line() for requirement in requirements))
    return "\n\n".join(blocks)


def page_section(results: Mapping[str, Any], requirements: Sequence[Requirement]) -> str:
    """Everything for docs/results.md."""
    arguments = results["arguments"]
    conditions = (
        f"{arguments['mib']} MiB ({PLAIN}) or half as much, 8 map tasks, 16 partitions; medians of "
        f"{arguments['rounds']} warm rounds that alternate the sides, ratios round by round. Each "
        "side has a session of its own; client CPU is that of driver, JVMs and Python workers. "
        "Requests are counted by the store, those that delete a job's objects included. Native "
        "and spark-s3-shuffle at their defaults; ours at its own, with the settings of Spark "
        "that docs/spark.md advises. The result goes to Spark's noop sink. The store shares the "
        "machine's cores."
    )
    cases = "\n".join(f"- {name}: {text}" for name, text in results["what"].items())
    verdicts = markdown_table(
        ["must reach", "measured", "limit", "verdict"],
        [[r.text, r.reached, r.border, r.verdict] for r in requirements],
    )
    blocks = ["## Spark's shuffle", conditions, cases, fact_list(results["about"])]
    blocks += [f"**Skipped:** {text}" for text in results["skipped"]]
    blocks += [verdicts, *(markdown_table(headers, rows) for headers, rows in _tables(results))]
    return "\n\n".join(blocks)
