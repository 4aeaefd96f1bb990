"""Tables for the terminal and for docs/results.md, and the section of this bench in that page.

Pure but for `machine`, which looks at the machine.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["fact_list", "machine", "markdown_table", "replace_section", "table"]

_ROOT = Path(__file__).resolve().parents[1]


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned for a terminal: the first to the left, figures to the right."""
    widths = [max(len(row[at]) for row in (headers, *rows)) for at in range(len(headers))]

    def line(cells: Sequence[str]) -> str:
        first, *others = (
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join((first, *others)).rstrip()

    return "\n".join([line(headers), line(["-" * width for width in widths]), *map(line, rows)])


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same for a page."""
    aligned = ["---", *["---:"] * (len(headers) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headers, aligned, *rows))


def fact_list(about: Mapping[str, str]) -> str:
    """What `machine` and a bench tell of a run, for a page."""
    return "\n".join(f"- {name}: {fact}" for name, fact in about.items())


def replace_section(page: str, name: str, text: str) -> str:
    """Put a generated section into a page, in its old place or at the end.

    Args:
        page: The whole page.
        name: Of the section; its markers carry it.
        text: Its new content.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    section = f"{begin}\n{text.strip()}\n{end}"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if pattern.search(page):
        return pattern.sub(lambda _: section, page)
    return f"{page.rstrip()}\n\n{section}\n" if page.strip() else f"{section}\n"


def machine(*packages: str) -> dict[str, str]:
    """Where and with what this runs.

    Args:
        *packages: Whose versions are told as well.
    """
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "cpu": f"{_cpu_model()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": ", ".join(
            f"{name} {version(name)}" for name in ("blobmsg", "confluent-kafka", "boto3", *packages)
        ),
        "load before": f"{os.getloadavg()[0]:.2f} over the last minute",
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _commit() -> str:
    def git(*arguments: str) -> str:
        answer = subprocess.run(
            ["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=False
        )
        return answer.stdout.strip()

    commit = git("rev-parse", "--short=12", "HEAD") or "unknown"
    changed = git(
        "status", "--porcelain", "--untracked-files=no", "--", "blobmsg", "blobmsg_spark", "bench"
    )
    return f"{commit} with uncommitted changes" if changed else commit
