"""`python -m blobmsg` is the program `blobmsg`."""

from __future__ import annotations

import sys

from blobmsg.cli.main import main

sys.exit(main())
