from __future__ import annotations

import importlib
import re
import subprocess
import sys

import pytest

import blobmsg
import blobmsg.testing
import blobmsg_spark
from tests.helpers.nobody import NOBODY

#: What users may import, beside the submodules below.
PUBLIC = {
    "AIOBlobConsumer", "AIOBlobProducer", "BlobConsumer", "BlobProducer",
    "DeserializingBlobConsumer", "Message", "SerializingBlobProducer", "__version__", "patch",
}  # fmt: skip
PUBLIC_MODULES = ("blobmsg.errors", "blobmsg.format", "blobmsg.offsets", "blobmsg.testing")


def test_the_package_exports_what_it_says() -> None:
    assert set(blobmsg.__all__) == PUBLIC
    for name in PUBLIC:
        assert hasattr(blobmsg, name)


def test_nothing_but_modules_is_reachable_besides() -> None:
    # pytest adds names such as "@py_builtins" where a `pip install .` has left its `.egg-info`.
    names = {name for name in vars(blobmsg) if name.isidentifier() and not name.startswith("_")}
    others = {name for name in names - PUBLIC if f"blobmsg.{name}" not in sys.modules}

    assert others == {"annotations"}


@pytest.mark.parametrize("module_name", PUBLIC_MODULES)
def test_public_modules_export_what_they_say(module_name: str) -> None:
    module = importlib.import_module(module_name)

    assert module.__all__
    assert len(module.__all__) == len(set(module.__all__))
    for name in module.__all__:
        assert hasattr(module, name)


def test_the_tools_for_tests_are_these() -> None:
    assert set(blobmsg.testing.__all__) == {
        "Fault", "FaultStore", "ManualClock", "MemoryStore", "MockKafka",
    }  # fmt: skip


def test_what_spark_users_import_is_this() -> None:
    assert set(blobmsg_spark.__all__) == {
        "Addition", "BlobmsgSource", "ExchangeUsage", "Shuffle", "StageUsage", "UnsupportedColumn",
        "clean_history", "history_files", "read_history", "reconcile", "reconcile_stream",
        "register_source", "repartition",
    }  # fmt: skip


def test_the_version_is_a_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", blobmsg.__version__)


def test_importing_the_package_loads_no_sdk() -> None:
    # The base install has none of them, and they take half a second to load.
    code = (
        "import sys, blobmsg; "
        "print([n for n in ('boto3', 'botocore', 'zstandard', 'lz4') if n in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_a_users_subclass_may_give_its_private_attributes_any_name() -> None:
    producer = blobmsg.BlobProducer(NOBODY)
    consumer = blobmsg.BlobConsumer({**NOBODY, "group.id": "g"})
    for client in (producer, consumer):
        names = {*vars(client), *vars(type(client))}
        private = {name for name in names if name.startswith("_") and not name.endswith("__")}
        assert private
        assert not {n for n in private if not n.startswith(f"_{type(client).__name__}__")}
        client.close()
