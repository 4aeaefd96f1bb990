"""Apache Kafka without Docker: its jars from Maven, brokers as plain Java processes.

Decides which version, how a broker is set up and how it is started. Never starts one: `native`
does. Brokers are controllers, too (KRaft), so three processes make a whole cluster.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from blobmsg.lab.cache_folder import Report, build_once
from blobmsg.lab.errors import LabError, PartsMissing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KAFKA_VERSION = "4.1.1"
KAFKA_PART = f"kafka-{KAFKA_VERSION}"
_LOG4J_VERSION = "2.24.3"  # the one Kafka brings; it brings no binding from slf4j to it
_OLDEST_JAVA = 17  # for brokers since Kafka 4.0

ZONES = ("az1", "az2", "az3")

BROKER_PROPERTIES: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    # A record is acknowledged by two zones, as in production.
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "num.partitions": "3",
    # Few partitions: fifty times three replicas cost seconds at the first consumer.
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "group.initial.rebalance.delay.ms": "0",
    # Each ten minutes Kafka forgets groups that are empty and have committed nothing; the next
    # generation is 1 then, which is chance in a test that compares generations.
    "offsets.retention.check.interval.ms": str(24 * 3_600_000),
    # Of Kafka's 10 MiB: the first record of a partition makes the kernel read its index files
    # ahead, which took three brokers a second of CPU for each new topic of 12 partitions.
    "log.index.size.max.bytes": str(1 << 20),
    # Tests that kill consumers want the group to notice before Kafka's 6 s.
    "group.min.session.timeout.ms": "1000",
    # Consumers read from the replica in their own zone (KIP-392).
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    # Kafka's own default, and what somebody who tries an example expects: the first record makes
    # the topic. What needs it otherwise overrides it when the stack is started.
    "auto.create.topics.enable": "true",
}

_POM = """<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>blobmsg.lab</groupId><artifactId>broker</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
      <version>{kafka}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId>
      <version>{log4j}</version>
    </dependency>
  </dependencies>
</project>
"""
_COPY_JARS = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"

_LOG4J_PROPERTIES = """rootLogger.level=INFO
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %m (%c{1})%n
"""


def java_command() -> str:
    """Return the Java program: `$JAVA_HOME`'s, else the one on the path.

    Raises:
        PartsMissing: There is none, or it is too old for a broker.
    """
    home = os.environ.get("JAVA_HOME")
    candidate = Path(home) / "bin" / "java" if home else None
    java = str(candidate) if candidate and candidate.is_file() else shutil.which("java")
    if java is None:
        raise PartsMissing(f"no java: install a JDK, {_OLDEST_JAVA} or newer, or start Docker")
    answer = subprocess.run(  # noqa: S603  (fixed arguments)
        [java, "-version"], capture_output=True, text=True, check=False
    )
    version = re.search(r'version "(\d+)', answer.stderr)
    if version is None or int(version[1]) < _OLDEST_JAVA:
        raise PartsMissing(
            f"{java} is too old or does not work ({answer.stderr.strip()[:200]}): "
            f"Kafka {KAFKA_VERSION} needs Java {_OLDEST_JAVA} or newer"
        )
    return java


def install_kafka(report: Report) -> Path:
    """Return a folder with the broker's jars and a formatted metadata folder to copy.

    Raises:
        PartsMissing: `java` or `mvn` is not there.
        LabError: A step failed; the text has its last words.
    """

    def build(folder: Path) -> None:
        java = java_command()
        maven = shutil.which("mvn")
        if maven is None:
            raise PartsMissing("no mvn: install Maven (it brings Kafka's jars), or start Docker")
        report(f"getting Kafka {KAFKA_VERSION} with Maven (a few seconds)")
        (folder / "pom.xml").write_text(_POM.format(kafka=KAFKA_VERSION, log4j=_LOG4J_VERSION))
        _run_step(
            "Maven",
            [maven, "-q", "-B", _COPY_JARS, f"-DoutputDirectory={folder / 'libs'}"],
            folder,
        )
        (folder / "log4j2.properties").write_text(_LOG4J_PROPERTIES)
        _format_template(java, folder)

    return build_once(KAFKA_PART, build, report)


def _format_template(java: str, folder: Path) -> None:
    """Format one metadata folder, for every broker ever started from this installation.

    The tool takes a second of both cores per broker at every start; what it writes differs
    between brokers by three ids in a text file (see `prepare_broker`).
    """
    settings = folder / "template.properties"
    settings.write_text(
        server_properties(
            {
                **BROKER_PROPERTIES,
                "node.id": "1",
                "controller.quorum.voters": "1@127.0.0.1:9093",
                "listeners": "CLIENTS://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
                "listener.security.protocol.map": "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "inter.broker.listener.name": "CLIENTS",
                "log.dirs": str(folder / "template"),
            }
        )
    )
    tool = [java, "-cp", str(folder / "libs" / "*"), "kafka.tools.StorageTool"]
    _run_step(
        "Kafka's storage tool",
        [*tool, "format", "-t", new_cluster_id(), "-c", str(settings)],
        folder,
    )


def new_cluster_id() -> str:
    """Return a new id as Kafka writes its UUIDs."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def prepare_broker(
    installation: Path,
    folder: Path,
    *,
    node_id: int,
    cluster_id: str,
    host: str,
    ports: Sequence[tuple[int, int]],
    overrides: Mapping[str, str],
) -> None:
    """Write what a broker needs to start into its folder.

    Args:
        installation: From `install_kafka`.
        folder: The broker's own, made here.
        node_id: From 1.
        cluster_id: The same for all brokers of a stack.
        host: Where all of them listen.
        ports: Client and controller port of every broker, by node id.
        overrides: Broker properties that differ from `BROKER_PROPERTIES`.
    """
    data = folder / "data"
    data.mkdir(parents=True)
    shutil.copy(installation / "template" / "bootstrap.checkpoint", data)
    (data / "meta.properties").write_text(
        f"version=1\nnode.id={node_id}\ncluster.id={cluster_id}\ndirectory.id={new_cluster_id()}\n"
    )
    client_port, controller_port = ports[node_id - 1]
    voters = ",".join(
        f"{number}@{host}:{controller}" for number, (_, controller) in enumerate(ports, start=1)
    )
    properties = {
        **BROKER_PROPERTIES,
        "node.id": str(node_id),
        "broker.rack": ZONES[(node_id - 1) % len(ZONES)],
        "listeners": f"CLIENTS://{host}:{client_port},CONTROLLER://{host}:{controller_port}",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "CLIENTS",
        "controller.quorum.voters": voters,
        "log.dirs": str(data),
        **overrides,
    }
    (folder / "server.properties").write_text(server_properties(properties))


def broker_command(installation: Path, folder: Path, heap_mebibytes: int) -> list[str]:
    """Return the command that starts the broker of a prepared folder."""
    return [
        java_command(),
        f"-Xms{heap_mebibytes}m",
        f"-Xmx{heap_mebibytes}m",
        "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={installation / 'log4j2.properties'}",
        "-cp",
        str(installation / "libs" / "*"),
        "kafka.Kafka",
        str(folder / "server.properties"),
    ]


def server_properties(properties: Mapping[str, str]) -> str:
    """Return the text of a Java properties file."""
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def _run_step(what: str, command: Sequence[str], folder: Path) -> None:
    answer = subprocess.run(  # noqa: S603  (commands are ours, no shell)
        list(command), cwd=folder, capture_output=True, text=True, check=False
    )
    if answer.returncode != 0:
        words = (answer.stdout + answer.stderr).strip()[-2000:]
        raise LabError(f"{what} failed with exit code {answer.returncode}:\n{words}")
