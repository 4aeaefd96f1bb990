"""How a bench on servers begins and ends: exit codes, its figures as JSON, its section of the page.

The same for every one of them, so that a run that failed says so in the same way.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench._cluster import PieceFailed
from bench._report import replace_section
from bench._rounds import WrongRecords
from bench._store_link import LinkFailed
from blobmsg.lab import LabError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["exit_code_of", "update_results", "write_figures"]

_ROOT = Path(__file__).resolve().parents[1]
_RESULTS = _ROOT / "docs" / "results.md"
_OUT = _ROOT / "bench" / "out"


def exit_code_of(measure: Callable[[], int]) -> int:
    """Run a bench; what ends it early becomes a line of text.

    Returns:
        What it returned, 1 when a record is wrong, 2 when it could not run, 130 after Ctrl-C.
    """
    try:
        return measure()
    except KeyboardInterrupt:
        print("\nstopped; servers, topics and objects are gone", file=sys.stderr)
        return 130
    except WrongRecords as error:
        print(f"WRONG RECORDS: {error}", file=sys.stderr)
        return 1
    except (LabError, LinkFailed, PieceFailed) as error:
        print(f"the bench could not run: {error}", file=sys.stderr)
        return 2


def write_figures(bench: str, results: Mapping[str, Any]) -> None:
    """Keep every figure of a run.

    Args:
        bench: Its name, for the file's.
        results: Anything that JSON can say.
    """
    _OUT.mkdir(exist_ok=True)
    out = _OUT / f"{bench}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    out.write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(f"\nall figures: {out.relative_to(_ROOT)}")


def update_results(bench: str, section: str) -> None:
    """Write a bench's section of docs/results.md anew.

    Args:
        bench: Its name; the section's markers carry it.
        section: Markdown.
    """
    page = _RESULTS.read_text(encoding="utf-8")
    _RESULTS.write_text(replace_section(page, f"bench/{bench}.py", section), encoding="utf-8")
    print(f"written: {_RESULTS.relative_to(_ROOT)}")
