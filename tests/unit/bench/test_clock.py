from __future__ import annotations

import os
import sys
import time

import pytest

from bench._clock import Stopwatch


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_cpu_of_servers_is_told_by_their_name() -> None:
    watch = Stopwatch({"brokers": [os.getpid()], "store": []})
    began = time.process_time()
    while time.process_time() - began < 0.1:
        pass

    seconds = watch.read()

    assert set(seconds) == {"wall_s", "cpu_s", "brokers_cpu_s", "store_cpu_s"}
    assert seconds["cpu_s"] >= 0.1
    assert seconds["brokers_cpu_s"] >= 0.08  # by ticks of 10 ms
    assert seconds["store_cpu_s"] == 0
