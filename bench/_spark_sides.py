"""The sides of the Spark bench: their settings, their processes, and what they answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench._cluster import PieceFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

__all__ = [
    "MODES",
    "NATIVE",
    "OURS",
    "S3_SHUFFLE",
    "RunningSide",
    "SideSettings",
    "answer_commands",
    "spark_conf",
]

NATIVE, OURS, S3_SHUFFLE = "native", "blobmsg", "spark-s3-shuffle"
#: Masters by the name of a mode.
MODES: Mapping[str, str] = {"local[2]": "local[2]", "local-cluster": "local-cluster[2,1,1024]"}
_ROOT = Path(__file__).resolve().parents[1]
# Begins the lines on stdout that are answers; Spark writes there, too.
_ANSWER = "@answer "

_COMMON: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "16",
    # Tables of the bench are small beside real ones: a join is to shuffle them.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
}
# As docs/spark.md advises.
_TUNED: Mapping[str, str] = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}


@dataclass(frozen=True, slots=True)
class SideSettings:
    """One way of shuffling.

    Attributes:
        name: In tables.
        conf: Spark's settings.
        shuffle: Arguments of `Shuffle`; None: by Spark's own API.
    """

    name: str
    conf: Mapping[str, str]
    shuffle: Mapping[str, Any] | None = field(default=None, repr=False)


def spark_conf(
    side: str,
    mode: str,
    folder: Path,
    *,
    store: Mapping[str, Any],
    root: str = "",
    jars: Sequence[Path] = (),
    more: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Spark's settings of a side.

    Args:
        side: Its name.
        mode: One of `MODES`.
        folder: For its local files.
        store: blobmsg's settings of the store.
        root: Where spark-s3-shuffle keeps its files, as `bucket/prefix`.
        jars: Of spark-s3-shuffle.
        more: Further settings.
    """
    conf = {
        **_COMMON,
        "spark.master": MODES[mode],
        "spark.driver.memory": "2g" if mode == "local[2]" else "1g",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.executorEnv.PYTHONPATH": str(_ROOT),
    }
    if side == OURS:
        conf |= _TUNED
    if side == S3_SHUFFLE:
        path = ":".join(map(str, jars))
        # What its README says is required, and nothing that it only recommends.
        conf |= {
            "spark.driver.extraClassPath": path,
            "spark.executor.extraClassPath": path,
            "spark.shuffle.manager": "org.apache.spark.shuffle.sort.S3ShuffleManager",
            "spark.shuffle.sort.io.plugin.class": "org.apache.spark.shuffle.S3ShuffleDataIO",
            "spark.shuffle.s3.rootDir": f"s3a://{root}",
            "spark.hadoop.fs.s3a.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
            "spark.hadoop.fs.s3a.access.key": store["blobmsg.s3.access.key.id"],
            "spark.hadoop.fs.s3a.secret.key": store["blobmsg.s3.secret.access.key"],
            "spark.hadoop.fs.s3a.endpoint": store["blobmsg.s3.endpoint.url"],
            "spark.hadoop.fs.s3a.endpoint.region": store["blobmsg.s3.region"],
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        }
    return conf | dict(more or {})


class RunningSide:
    """The process of a side; its session stays warm between commands.

    Args:
        module: What it runs.
        name: Of the side, for errors.
        log: Where its stderr goes.
        arguments: Of its first command, which starts the session.

    Raises:
        PieceFailed: It did not start.

    Threads: one.
    """

    def __init__(self, module: str, name: str, log: Path, **arguments: Any) -> None:
        self._name = name
        self._log = log
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": str(_ROOT),
        }
        with log.open("w") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                cwd=_ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        self.ask("start", **arguments)

    @property
    def pid(self) -> int:
        """Of the process that has all of it below."""
        return self._process.pid

    def ask(self, task: str, **arguments: Any) -> dict[str, Any]:
        """Give a command and wait for its answer.

        Raises:
            PieceFailed: It failed.
        """
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("a side is started with pipes")
        self._process.stdin.write(json.dumps({"task": task, **arguments}) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(_ANSWER):
                answer: dict[str, Any] = json.loads(line[len(_ANSWER) :])
                if "error" in answer:
                    raise PieceFailed(f"{self._name}, {task}: {answer['error'][-4000:]}")
                return answer
        words = self._log.read_text(errors="replace")[-4000:]
        raise PieceFailed(f"{self._name} ended during {task}:\n{words}")

    def __enter__(self) -> Self:
        """The side itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it."""
        if error is None:
            self.ask("stop")
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(20 if error is None else 1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def answer_commands(open_side: Callable[..., Any]) -> None:
    """What a side's process does: answer commands until there are none.

    Args:
        open_side: Makes the side with the arguments of the first command; the others are its
            methods.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it ends us
    side: Any = None
    for line in sys.stdin:
        command = json.loads(line)
        task = command.pop("task")
        try:
            if side is None:
                side, answer = open_side(**command), {}
            else:
                answer = getattr(side, task)(**command)
        except Exception:  # noqa: BLE001  (the parent tells it, and ends us)
            answer = {"error": traceback.format_exc()}
        sys.stdout.write(f"\n{_ANSWER}{json.dumps(answer)}\n")
        sys.stdout.flush()
