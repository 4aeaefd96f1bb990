"""`python -m blobmsg_spark`, and what spark-submit runs; see `command`."""

from __future__ import annotations

import sys

from blobmsg_spark.command import main

if __name__ == "__main__":
    sys.exit(main())
