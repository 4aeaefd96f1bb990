from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from blobmsg.lab import kafka
from blobmsg.lab.errors import PartsMissing

if TYPE_CHECKING:
    from pathlib import Path


def _properties(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines())


@pytest.fixture
def installation(tmp_path: Path) -> Path:
    template = tmp_path / "installation" / "template"
    template.mkdir(parents=True)
    (template / "bootstrap.checkpoint").write_bytes(b"features")
    return template.parent


def _prepare(installation: Path, folder: Path, node_id: int, **overrides: str) -> Path:
    home = folder / f"kafka-{node_id}"
    kafka.prepare_broker(
        installation,
        home,
        node_id=node_id,
        cluster_id="cluster",
        host="127.0.0.1",
        ports=[(1, 11), (2, 12), (3, 13)],
        overrides={key.replace("_", "."): value for key, value in overrides.items()},
    )
    return home


def test_each_broker_has_its_zone_ports_and_ids(installation: Path, tmp_path: Path) -> None:
    homes = [_prepare(installation, tmp_path, number) for number in (1, 2, 3)]

    settings = [_properties(home / "server.properties") for home in homes]
    identities = [_properties(home / "data" / "meta.properties") for home in homes]
    assert [s["broker.rack"] for s in settings] == ["az1", "az2", "az3"]
    assert settings[1]["listeners"] == "CLIENTS://127.0.0.1:2,CONTROLLER://127.0.0.1:12"
    assert {s["controller.quorum.voters"] for s in settings} == {
        "1@127.0.0.1:11,2@127.0.0.1:12,3@127.0.0.1:13"
    }
    assert [i["node.id"] for i in identities] == ["1", "2", "3"]
    assert {i["cluster.id"] for i in identities} == {"cluster"}
    assert len({i["directory.id"] for i in identities}) == 3
    assert (homes[0] / "data" / "bootstrap.checkpoint").read_bytes() == b"features"


def test_overrides_win(installation: Path, tmp_path: Path) -> None:
    home = _prepare(installation, tmp_path, 1, auto_create_topics_enable="false")

    assert _properties(home / "server.properties")["auto.create.topics.enable"] == "false"


def test_an_old_java_is_refused_by_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(PartsMissing, match=r"11\.0\.2.*needs Java 17"):
        kafka.java_command()


def test_java_home_goes_before_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"21\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    assert kafka.java_command() == str(java)
