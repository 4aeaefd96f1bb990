from __future__ import annotations

from typing import Any

from bench._plan import judge, medians_of
from bench._report import machine, markdown_table, replace_section, table
from bench._summary import page_section, terminal_text


def test_a_table_aligns_names_left_and_figures_right() -> None:
    text = table(["what", "MiB/s"], [["stock", "1.0"], ["blobmsg", "123.4"]])

    assert text.splitlines() == [
        "what     MiB/s",
        "-------  -----",
        "stock      1.0",
        "blobmsg  123.4",
    ]


def test_a_markdown_table_has_a_line_per_row() -> None:
    text = markdown_table(["what", "MiB/s"], [["stock", "1.0"]])

    assert text.splitlines() == ["| what | MiB/s |", "| --- | ---: |", "| stock | 1.0 |"]


def test_a_new_section_is_appended_and_the_rest_stays() -> None:
    page = replace_section("# Results\n\nText.\n", "b.py", "new \\1")

    assert page == "# Results\n\nText.\n\n<!-- b.py: begin -->\nnew \\1\n<!-- b.py: end -->\n"


def test_an_old_section_is_replaced_where_it_is() -> None:
    page = "a\n<!-- b.py: begin -->\nold\n<!-- b.py: end -->\nz\n"

    replaced = replace_section(page, "b.py", "new")

    assert replaced == "a\n<!-- b.py: begin -->\nnew\n<!-- b.py: end -->\nz\n"
    assert replace_section(replaced, "b.py", "new") == replaced


def test_the_machine_is_described_without_empty_fields() -> None:
    about = machine()

    assert {"date", "commit", "cpu", "memory", "kernel", "python", "packages"} <= set(about)
    assert all(about.values())


def run(mib_per_s: float, **more: Any) -> dict[str, Any]:
    return {
        "mib_per_s": mib_per_s,
        "mib_per_cpu_s": 2 * mib_per_s,
        "cpu_us_per_record": 3.25,
        **more,
    }


def results() -> dict[str, Any]:
    ours = {
        "tx_share": 0.001,
        "brokers_cpu_s_per_gib": 0.9,
        "store_cpu_s_per_gib": 1.42,
        "object_bytes": 16,
    }
    runs: dict[str, Any] = {
        "sweep": {"linger.ms=5": [run(40.0)]},
        "produce": {
            "stock, best": [run(50.0, tx_share=1.0), run(40.0, tx_share=1.0)],
            "blobmsg": [run(300.0, **ours), run(500.0, **ours)],
        },
        "ceiling": {"store, 4 parallel": [run(800.0, object_bytes=16)]},
    }
    return {
        "about": {"command": "python -m bench.throughput", "cpu": "Some CPU, 2 cores"},
        "arguments": {"mib": 512, "sweep_mib": 128, "rounds": 2},
        "stock_best": "linger.ms=5",
        "our_best": "batch.size=64M produce",
        "records_verified": 1234567,
        "runs": runs,
        "medians": {
            section: {name: medians_of(figures) for name, figures in variants.items()}
            for section, variants in runs.items()
        },
    }


def test_the_terminal_shows_medians_spread_sweep_and_verdicts() -> None:
    text = terminal_text(results(), judge(results()["medians"]))

    ours = next(line for line in text.splitlines() if line.startswith("blobmsg"))
    assert ours.split() == ["blobmsg", "400.0", "300..500", "800.0", "3.25", "1/1000", "0.9", "1.4"]
    stock = next(line for line in text.splitlines() if line.startswith("stock, best"))
    assert stock.split()[-2:] == ["-", "-"]  # nobody measured the servers there
    assert any(
        line.split() == ["linger.ms=5", "40.0", "80.0", "3.25"] for line in text.splitlines()
    )
    assert "PASS         producing, wall, best of each, ours times stock's: 8.89 (>= 5.00)" in text
    assert (
        "FAIL         producing, wall, our best, share of the raw PUT ceiling: 0.50 (>= 0.70)"
        in text
    )
    assert "1,234,567 records verified" in text


def test_the_page_names_command_machine_and_verdicts() -> None:
    text = page_section(results(), judge(results()["medians"]))

    assert "- command: python -m bench.throughput" in text
    assert "- cpu: Some CPU, 2 cores" in text
    assert "| blobmsg | 400.0 | 300..500 | 800.0 | 3.25 | 1/1000 | 0.9 | 1.4 |" in text
    assert "| producing, wall, best of each, ours times stock's | 8.89 | >= 5.00 | PASS |" in text
    assert "| poll, CPU per record, times stock's | - | <= 1.00 | not measured |" in text
