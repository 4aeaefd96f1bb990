"""The Compose files are valid, and give the same servers as a native start does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from blobmsg.lab import kafka, minio
from blobmsg.lab.docker import COMPOSE_FILE, container_variable

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = json.loads((ROOT / "tests" / "data" / "compose-spec.json").read_text(encoding="utf-8"))


def _load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


@pytest.mark.parametrize("path", [COMPOSE_FILE, ROOT / "compose.yaml"], ids=["lab", "root"])
def test_compose_file_follows_the_compose_schema(path: Path) -> None:
    jsonschema.validate(_load(path), SCHEMA, cls=jsonschema.Draft202012Validator)


def test_the_schema_refuses_a_misspelt_key() -> None:
    content = _load(COMPOSE_FILE)
    content["services"]["minio"]["enviroment"] = {}

    with pytest.raises(jsonschema.ValidationError, match="enviroment"):
        jsonschema.validate(content, SCHEMA, cls=jsonschema.Draft202012Validator)


def test_root_file_adds_the_demo_to_the_lab() -> None:
    content = _load(ROOT / "compose.yaml")

    assert [(ROOT / path).resolve() for path in content["include"]] == [COMPOSE_FILE.resolve()]
    assert set(content["services"]) == {"demo"}
    assert set(content["services"]["demo"]["depends_on"]) == set(_load(COMPOSE_FILE)["services"])


@pytest.mark.parametrize("number", [1, 2, 3])
def test_containers_have_the_broker_properties_of_native_brokers(number: int) -> None:
    broker = _load(COMPOSE_FILE)["services"][f"kafka-{number}"]
    environment = broker["environment"]

    native = {container_variable(key): value for key, value in kafka.BROKER_PROPERTIES.items()}
    assert {key: environment.get(key) for key in native} == native
    assert environment["KAFKA_NODE_ID"] == str(number)
    assert environment["KAFKA_BROKER_RACK"] == kafka.ZONES[number - 1]
    assert broker["image"] == f"apache/kafka:{kafka.KAFKA_VERSION}"
    assert f"BLOBMSG_KAFKA_{number}_PORT" in broker["ports"][0]
    assert f"BLOBMSG_KAFKA_{number}_PORT" in environment["KAFKA_ADVERTISED_LISTENERS"]


def test_store_container_has_the_keys_and_the_bucket_of_a_native_store() -> None:
    store = _load(COMPOSE_FILE)["services"]["minio"]

    assert store["environment"] == dict(minio.minio_environment())
    assert f"mkdir -p /data/{minio.BUCKET} " in store["entrypoint"][-1]


def test_store_container_has_the_options_of_a_native_store() -> None:
    command = _load(COMPOSE_FILE)["services"]["minio"]["entrypoint"][-1].partition("exec ")[2]

    native = minio.minio_command(Path("minio"), [Path("/data")], ":9000")
    assert command.split() == native


def test_nothing_listens_beyond_this_machine() -> None:
    services = _load(COMPOSE_FILE)["services"].values()

    assert all(port.startswith("127.0.0.1:") for service in services for port in service["ports"])
