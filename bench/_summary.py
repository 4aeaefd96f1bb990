"""What the bench says in the end: tables of medians, the sweep, and the verdicts. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench._report import fact_list, markdown_table, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench._plan import Figures, Requirement

__all__ = ["page_section", "terminal_text"]

Rows = list[list[str]]


def _spread(runs: Sequence[Figures], figure: str) -> str:
    values = [run[figure] for run in runs]
    return f"{min(values):.0f}..{max(values):.0f}"


def _client_rows(medians: Mapping[str, Figures], runs: Mapping[str, Sequence[Figures]]) -> Rows:
    return [
        [
            name,
            f"{figures['mib_per_s']:.1f}",
            _spread(runs[name], "mib_per_s"),
            f"{figures['mib_per_cpu_s']:.1f}",
            f"{figures['cpu_us_per_record']:.2f}",
            f"1/{1 / figures['tx_share']:.0f}" if figures.get("tx_share") else "",
            *(
                f"{figures[name]:.1f}" if name in figures else "-"
                for name in ("brokers_cpu_s_per_gib", "store_cpu_s_per_gib")
            ),
        ]
        for name, figures in medians.items()
    ]


_HEADERS = {
    "produce": [
        *("producing", "MiB/s", "min..max", "MiB/CPU-s", "CPU us/record", "tx_bytes/payload"),
        *("brokers' CPU s/GiB", "store's CPU s/GiB"),
    ],
    "consume": ["consuming", "MiB/s", "min..max", "MiB/CPU-s", "CPU us/record"],
    "ceiling": ["raw PUT", "MiB/s", "min..max", "MiB/CPU-s"],
    "link": ["what gets to the store is limited", "MiB/s", "min..max", "MiB/CPU-s"],
    "final": ["the sweep's best again", "MiB/s", "MiB/CPU-s", "CPU us/record"],
    "our sweep": ["blobmsg's sweep", "MiB/s", "MiB/CPU-s", "CPU us/record"],
    "sweep": ["stock's sweep", "MiB/s", "MiB/CPU-s", "CPU us/record"],
}


def _tables(results: Mapping[str, Any]) -> list[tuple[list[str], Rows]]:
    medians, runs = results["medians"], results["runs"]
    tables: list[tuple[list[str], Rows]] = []
    for section in ("produce", "consume", "ceiling", "link", "our sweep", "final", "sweep"):
        if section not in medians:
            continue
        headers = _HEADERS[section]
        if section in ("sweep", "final", "our sweep"):
            rows = [
                [row[0], row[1], row[3], row[4]] for row in _client_rows(*_of(results, section))
            ]
        elif section in ("ceiling", "link"):
            rows = [
                [
                    name,
                    f"{figures['mib_per_s']:.1f}",
                    _spread(runs[section][name], "mib_per_s"),
                    f"{figures['mib_per_cpu_s']:.1f}",
                ]
                for name, figures in medians[section].items()
            ]
        else:
            rows = [row[: len(headers)] for row in _client_rows(*_of(results, section))]
        tables.append((headers, rows))
    return tables


def _of(results: Mapping[str, Any], section: str) -> tuple[Any, Any]:
    return results["medians"][section], results["runs"][section]


def terminal_text(results: Mapping[str, Any], requirements: Sequence[Requirement]) -> str:
    """Everything for the terminal."""
    arguments = results["arguments"]
    blocks = [table(headers, rows) for headers, rows in reversed(_tables(results))]
    blocks.append(
        f"medians of {arguments['rounds']} rounds of {arguments['mib']} MiB; stock's best: "
        f"{results['stock_best']}; ours: {results['our_best']}; "
        f"{results['records_verified']:,} records verified"
    )
    blocks.append("\n".join(f"{name + ':':13} {text}" for name, text in results["about"].items()))
    blocks.append("\n".join(requirement.line() for requirement in requirements))
    return "\n\n".join(blocks)


def page_section(results: Mapping[str, Any], requirements: Sequence[Requirement]) -> str:
    """Everything for docs/results.md."""
    arguments = results["arguments"]
    about = fact_list(results["about"])
    tables = [markdown_table(headers, rows) for headers, rows in _tables(results)]
    verdicts = markdown_table(
        ["must reach", "measured", "limit", "verdict"],
        [
            [
                requirement.text,
                requirement.reached,
                requirement.border,
                requirement.verdict,
            ]
            for requirement in requirements
        ],
    )
    conditions = (
        "1 KiB random values with 8-byte keys, 12 partitions, replication factor 3, acks=all and "
        f"idempotence on both sides; {arguments['mib']} MiB per piece, medians of "
        f"{arguments['rounds']} alternating rounds; stock's best from the sweep "
        f"({arguments['sweep_mib']} MiB per cell): {results['stock_best']}; ours: "
        f"{results['our_best']}. "
        f"{results['records_verified']:,} records were read back, hashed and compared."
    )
    return "\n\n".join(
        ["## Throughput beside the stock client", conditions, about, verdicts, *tables]
    )
