from __future__ import annotations

import io
from typing import Any, NamedTuple

from blobmsg_spark.progress import Progress, StageProgress, progress_line
from blobmsg_spark.usage import ExchangeUsage, StageUsage


class _Info(NamedTuple):
    numTasks: int
    numActiveTasks: int
    numCompletedTasks: int


class _Tracker:
    """What Spark knows of stages; None is one that it has forgotten."""

    def __init__(self, stages: dict[int, _Info | None]) -> None:
        self.stages = stages
        self.asked: list[int] = []

    def getStageInfo(self, stage: int) -> _Info | None:
        self.asked.append(stage)
        return self.stages[stage]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


_MAPS = ExchangeUsage.of_map_task(StageUsage(tasks=1, put_bytes=3 << 20), None, 4)


def _progress(stages: dict[int, _Info | None], stream: io.StringIO) -> tuple[Progress, Any, Any]:
    usages = {"1 repartition(8)": _MAPS}
    tracker: Any = _Tracker(stages)
    return Progress(lambda: usages, tracker, stream), tracker, usages


def test_a_line_is_as_wide_as_it_may_be_and_its_bar_as_long_as_the_stage_is_far() -> None:
    half = StageProgress("1 repartition(8) map", 2, 1, 4, 3 << 20)

    assert half.text(60) == "[1 repartition(8) map:=========>         (2 + 1) / 4, 3 MiB]"
    assert len(half.text(60)) == 60
    assert "=====(4 + 0) / 4" in StageProgress("a", 4, 0, 4, 0).text(20)


def test_stages_share_the_line() -> None:
    stages = [StageProgress(name, 1, 1, 2, 0) for name in ("1 map", "2 map")]

    assert len(progress_line(stages, 80)) == 80
    assert progress_line([], 80) == ""


def test_a_terminal_has_one_line_that_is_wiped_away_in_the_end() -> None:
    stream = _Terminal()
    progress, tracker, _ = _progress({4: _Info(3, 2, 1)}, stream)

    progress.look()
    drawn = stream.getvalue()
    progress.look()
    assert stream.getvalue() == drawn  # nothing new
    tracker.stages[4] = _Info(3, 0, 3)
    progress.look()

    assert drawn.startswith("\r[1 repartition(8) map:")
    assert "(1 + 2) / 3, 3 MiB]" in drawn
    assert "\n" not in stream.getvalue()
    assert stream.getvalue()[len(drawn) :] == "\r" + " " * (len(drawn) - 1) + "\r"


def test_what_has_ended_or_is_forgotten_is_not_asked_for_again() -> None:
    progress, tracker, usages = _progress({4: _Info(1, 0, 1), 6: None}, io.StringIO())

    progress.look()
    progress.look()
    usages["1 repartition(8)"] += ExchangeUsage.of_reduce_task(StageUsage(), None, 6)
    progress.look()
    progress.look()

    assert tracker.asked == [4, 6]


def test_a_stage_that_runs_again_is_shown_again() -> None:
    stream = io.StringIO()
    progress, _, usages = _progress({4: _Info(1, 0, 1), 9: _Info(1, 0, 1)}, stream)

    progress.look()
    usages["1 repartition(8)"] += ExchangeUsage.of_map_task(StageUsage(), None, 9)
    progress.look()

    assert [line.partition(":")[0] for line in stream.getvalue().splitlines()] == [
        "[1 repartition(8) map",
        "[1 repartition(8) map",
    ]


def test_a_log_has_no_line_drawn_over_and_hears_of_a_stage_when_it_ends() -> None:
    stream = io.StringIO()
    progress, tracker, _ = _progress({4: _Info(3, 2, 1)}, stream)

    progress.look()
    assert stream.getvalue() == ""
    tracker.stages[4] = _Info(3, 0, 3)
    progress.look()

    assert "\r" not in stream.getvalue()
    assert stream.getvalue().endswith("(3 + 0) / 3, 3 MiB]\n")


def test_its_thread_ends_when_it_is_stopped_and_when_the_stream_is_closed() -> None:
    stream = io.StringIO()
    progress, _, _ = _progress({4: _Info(1, 0, 1)}, stream)

    progress.start()
    progress.stop()
    assert "(1 + 0) / 1" in stream.getvalue()

    closed, _, _ = _progress({4: _Info(1, 0, 1)}, stream)
    stream.close()
    closed.start()
    closed.stop()
