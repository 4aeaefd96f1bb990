"""Free TCP ports that stay free while a server is down.

Ports come from below the range from which the kernel takes the local ports of outgoing
connections: else a client's connection could sit on a killed broker's port when it restarts.
"""

from __future__ import annotations

import random
import socket

# Linux begins at 32768, macOS and Windows at 49152.
FIRST_PORT, LAST_PORT = 12_000, 32_000


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return `count` different ports of `host` on which nothing listens now.

    Raises:
        OSError: No such ports were found.
    """
    rng = random.SystemRandom()
    ports: list[int] = []
    for _ in range(50 * count):
        if len(ports) == count:
            break
        port = rng.randrange(FIRST_PORT, LAST_PORT)
        if port not in ports and _is_free(host, port):
            ports.append(port)
    if len(ports) < count:
        raise OSError(f"no {count} free ports between {FIRST_PORT} and {LAST_PORT} on {host}")
    return ports


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
