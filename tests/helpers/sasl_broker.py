"""One broker that lets in only who logs in, by password or by token."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from blobmsg.lab import PartsMissing
from blobmsg.lab.kafka import broker_command, install_kafka, new_cluster_id, prepare_broker
from blobmsg.lab.ports import free_ports
from blobmsg.lab.processes import ProcessId, log_tail, spawn
from tests.helpers.stack import without_servers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HOST: Final = "127.0.0.1"
_START_S: Final = 200
# However the tests end, SIGKILL too. A stack of the lab has a guardian, but this is none: the lab
# could not ask it whether it is ready.
_DIES_WITH_TESTS: Final = (
    ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") is not None else ()
)
_LOGIN: Final = "org.apache.kafka.common.security"
#: Who is let in.
USER, PASSWORD = "writer", "open sesame"

_PROPERTIES: Final = {
    "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.clients.plain.sasl.jaas.config": (
        f'{_LOGIN}.plain.PlainLoginModule required username="broker" password="broker" '
        f'user_broker="broker" user_{USER}="{PASSWORD}";'
    ),
    # Tokens that nobody signed: what is tested is how clients bring them.
    "listener.name.clients.oauthbearer.sasl.jaas.config": (
        f'{_LOGIN}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="b";'
    ),
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


@contextlib.contextmanager
def sasl_broker(folder: Path) -> Iterator[str]:
    """Run it for the length of the block; yields its `bootstrap.servers`."""
    try:
        installation = install_kafka(lambda _text: None)
        client_port, controller_port = free_ports(2, _HOST)
        home = folder / "kafka"
        prepare_broker(
            installation,
            home,
            node_id=1,
            cluster_id=new_cluster_id(),
            host=_HOST,
            ports=[(client_port, controller_port)],
            overrides=_PROPERTIES,
        )
        command = broker_command(installation, home, 256)
    except PartsMissing as error:  # servers in Docker, or somebody else's
        without_servers(f"no broker with logins: {error}")
    bootstrap_servers = f"{_HOST}:{client_port}"
    log = folder / "log.txt"
    broker = spawn([*_DIES_WITH_TESTS, *command], {}, log, folder)
    try:
        _wait_ready(bootstrap_servers, broker, log)
        yield bootstrap_servers
    finally:
        broker.kill_group()


def by_password(bootstrap_servers: str, password: str = PASSWORD) -> dict[str, Any]:
    """Settings of a client that logs in by name and password."""
    return {
        "bootstrap.servers": bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": password,
    }


def by_token(bootstrap_servers: str) -> dict[str, Any]:
    """Settings of a client that logs in by a token, less its `oauth_cb`."""
    return {
        "bootstrap.servers": bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.config": "for=the test",
    }


def token(lifetime_s: float = 3600) -> tuple[str, float]:
    """An unsigned token and the time of its end, as an `oauth_cb` returns them."""
    ends = time.time() + lifetime_s
    parts = [{"alg": "none"}, {"sub": USER, "iat": time.time(), "exp": ends}]
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts]
    return b".".join([*encoded, b""]).decode(), ends


def _wait_ready(bootstrap_servers: str, broker: ProcessId, log: Path) -> None:
    admin = AdminClient({**by_password(bootstrap_servers), "log_level": 0})
    deadline = time.monotonic() + _START_S
    while not _answers(admin):
        assert broker.is_alive(), f"the broker ended: {log_tail(log)}"
        assert time.monotonic() < deadline, f"it never answered: {log_tail(log)}"


def _answers(admin: AdminClient) -> bool:
    try:
        admin.list_topics(timeout=1)
    except KafkaException:
        return False
    return True
