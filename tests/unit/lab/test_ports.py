from __future__ import annotations

import socket

from blobmsg.lab.ports import FIRST_PORT, LAST_PORT, free_ports


def test_ports_are_different_and_free() -> None:
    ports = free_ports(20)

    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as probe:
            # As servers do: a connection of one that was killed may linger there.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))


def test_ports_are_never_those_of_outgoing_connections() -> None:
    assert all(FIRST_PORT <= port < LAST_PORT < 32768 for port in free_ports(50))
