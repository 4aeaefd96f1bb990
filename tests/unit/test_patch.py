"""`blobmsg.patch()` and `python -m blobmsg.run`, without a cluster; in processes, for it stays."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def test_names_imported_later_are_ours_also_in_classes_derived_from_them(tmp_path: Path) -> None:
    code = """
import blobmsg
blobmsg.patch()
blobmsg.patch()
import confluent_kafka
from confluent_kafka import Consumer, Producer
class Mine(Producer): pass
conf = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "blobmsg.store.url": "memory://x"}
producer = Mine(conf)
assert isinstance(producer, confluent_kafka.Producer), type(producer)
assert isinstance(producer, blobmsg.BlobProducer)
assert (Producer, Consumer) == (blobmsg.BlobProducer, blobmsg.BlobConsumer)
from confluent_kafka import DeserializingConsumer
from confluent_kafka.serializing_producer import SerializingProducer
assert SerializingProducer is blobmsg.SerializingBlobProducer
assert DeserializingConsumer is blobmsg.DeserializingBlobConsumer
if hasattr(confluent_kafka, "ShareConsumer"):  # newer versions
    from confluent_kafka.aio import AIOConsumer, AIOProducer
    assert (AIOProducer, AIOConsumer) == (blobmsg.AIOBlobProducer, blobmsg.AIOBlobConsumer)
consumer = Consumer({**conf, "group.id": "g"})
assert type(consumer._BlobConsumer__inner) is not blobmsg.BlobConsumer
assert type(producer._BlobProducer__inner) is not blobmsg.BlobProducer
producer.close()
consumer.close()
"""
    done = run("-c", code, folder=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "imported before" not in done.stderr


def test_what_was_imported_before_is_named_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(
        "from confluent_kafka import Producer as P, TopicPartition\nclass Mine(P): pass"
    )

    done = run("-c", "import early, blobmsg; blobmsg.patch()", folder=tmp_path)

    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        f"early.{name} was imported before blobmsg.patch() and stays the stock class: patch first"
        for name in ("P", "Mine")
    ]


def test_an_application_has_its_own_arguments_path_and_exit_code(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("NAME = 'beside'")
    (tmp_path / "app.py").write_text(
        "import sys, beside, confluent_kafka\n"
        "print(beside.NAME, sys.argv, confluent_kafka.Producer.__name__)\n"
        "sys.exit(7)"
    )

    app = str(tmp_path / "app.py")
    done = run("-m", "blobmsg.run", app, "--", "-m", "--help", folder=tmp_path.parent)

    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout == f"beside ['{app}', '--', '-m', '--help'] BlobProducer\n"


def test_an_application_is_the_main_module_as_python_makes_it(tmp_path: Path) -> None:
    (tmp_path / "beside.py").touch()
    (tmp_path / "app.py").write_text(
        "import atexit, pickle, sys, beside\n"
        "file = __file__\n"
        "class Mine: pass\n"
        "def show():\n"
        "    main = sys.modules['__main__']\n"
        "    names = sorted(name for name in vars(main) if name[:2] != '__')\n"
        "    print(file, sys.argv, names, main.Mine is Mine, len(pickle.dumps(Mine())) > 0)\n"
        "atexit.register(show)\n"
    )
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "link.py").symlink_to("../app.py")

    plain = run("link.py", "x", folder=folder)
    patched = run("-m", "blobmsg.run", "link.py", "x", folder=folder)

    assert patched.stdout == plain.stdout
    assert plain.stdout
    assert (patched.returncode, patched.stderr) == (0, "")


@pytest.mark.parametrize("words", [["-m", "pack", "x"], ["-mpack", "x"], ["-m", "pack.part", "x"]])
def test_a_module_runs_as_python_runs_it(tmp_path: Path, words: list[str]) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").touch()
    code = (
        "import sys; from . import __name__ as name; print(name, __name__, __spec__.name, sys.argv)"
    )
    (package / "__main__.py").write_text(code)
    (package / "part.py").write_text(code)

    plain, patched = run(*words, folder=tmp_path), run("-m", "blobmsg.run", *words, folder=tmp_path)

    assert patched.stdout == plain.stdout
    assert plain.stdout
    assert (patched.returncode, patched.stderr) == (0, "")


def test_a_module_that_lacks_something_says_what(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("import no_such_dependency")
    (package / "part.py").touch()

    done = run("-m", "blobmsg.run", "-m", "pack.part", folder=tmp_path)

    assert done.returncode == 1
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'no_such_dependency'\n")


def test_a_folder_with_a_main_module_runs(tmp_path: Path) -> None:
    (tmp_path / "__main__.py").write_text("import confluent_kafka as c; print(c.Producer.__name__)")

    done = run("-m", "blobmsg.run", ".", folder=tmp_path)

    assert (done.returncode, done.stdout) == (0, "BlobProducer\n")


def test_help_says_how(tmp_path: Path) -> None:
    done = run("-m", "blobmsg.run", "--help", folder=tmp_path)

    assert done.returncode == 0
    assert "BLOBMSG_*" in done.stdout


def test_a_failing_application_shows_its_own_traceback(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("raise ValueError('its own')")

    done = run("-m", "blobmsg.run", "app.py", folder=tmp_path)

    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: its own\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nowhere.py"], "blobmsg.run: there is no file nowhere.py\n"),
        (["-m", "no.such"], "blobmsg.run: there is no module no.such\n"),
        ([], "usage: python -m blobmsg.run"),
        (["-m"], "usage: python -m blobmsg.run"),
        (["-x", "app.py"], "usage: python -m blobmsg.run"),
    ],
)
def test_a_wrong_request_is_answered_without_a_traceback(
    tmp_path: Path, arguments: list[str], text: str
) -> None:
    done = run("-m", "blobmsg.run", *arguments, folder=tmp_path)

    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr
