"""A driver that reconciles and stands still between its files and its manifest, to be killed."""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from blobmsg_spark import reconcile
from blobmsg_spark.history_log import HistoryLog

if TYPE_CHECKING:
    from blobmsg_spark.history_manifest import HistoryFile


def main() -> None:
    """Run it; never ends by itself."""
    plan = json.loads(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable

    def stand_still(_log: HistoryLog, *arguments: Any) -> None:
        files: list[HistoryFile] = arguments[-1]
        print(json.dumps({"event": "files are written", "files": len(files)}), flush=True)
        threading.Event().wait()

    HistoryLog.commit = stand_still  # type: ignore[assignment, method-assign]
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    reconcile(spark, plan["options"], to=plan["to"])


if __name__ == "__main__":
    main()
