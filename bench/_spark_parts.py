"""What other people's parts the Spark benches need: got and built once, in the user's cache.

spark-s3-shuffle is compiled from its source with the Scala compiler that Spark brings; its one line
that Spark 4.3 does not take is changed on the way. Nothing of it is ever part of this repository.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from blobmsg.lab import LabError, PartsMissing
from blobmsg.lab.cache_folder import build_once

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Report = Callable[[str], None]

__all__ = ["S3_SHUFFLE_SOURCE", "adapt_source", "kafka_source_jars", "s3_shuffle_jars"]

#: Where spark-s3-shuffle is published.
S3_SHUFFLE_SOURCE = "https://github.com/IBM/spark-s3-shuffle"
_SPARK_JARS = Path(pyspark.__file__).parent / "jars"
# Of Hadoop as in Spark 4.3, and of the SDK that this Hadoop was made with. Of the SDK only what is
# needed: its bundle of everything has 600 MB.
_HADOOP, _SDK = "3.5.0", "2.35.4"
# Spark's own come first, and two of one library do not go together.
_IN_SPARK = ("org.slf4j", "io.netty", "commons-logging", "commons-codec", "org.apache.hadoop")
_KAFKA_SOURCE = "4.2.0"
_COPY_JARS = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_NAMES = ("name", "version", "sparkVersion", "scalaVersion")


def kafka_source_jars(report: Report) -> list[Path]:
    """The jars of spark-sql-kafka: none is published for 4.3, that of 4.2 runs on it.

    Raises:
        PartsMissing: No Maven.
        LabError: It did not get them.
    """

    def build(folder: Path) -> None:
        report(f"getting spark-sql-kafka {_KAFKA_SOURCE} with Maven")
        _maven(
            folder,
            [f"org.apache.spark:spark-sql-kafka-0-10_2.13:{_KAFKA_SOURCE}"],
            # The lz4 and snappy of Spark 4.3 are others than those of 4.2.
            excluded=("org.slf4j", "org.apache.hadoop", "org.scala-lang", "org.xerial.snappy",
                      "at.yawk.lz4", "org.lz4", "com.google.code.findbugs",
                      "org.scala-lang.modules", "org.apache.spark:spark-tags_2.13"),
        )  # fmt: skip

    return sorted(build_once(f"spark-sql-kafka-{_KAFKA_SOURCE}", build, report).glob("*.jar"))


def s3_shuffle_jars(source: str, report: Report) -> list[Path]:
    """The jars of spark-s3-shuffle, built from its source, and of Hadoop's S3 client.

    Args:
        source: A git repository (url or folder) or a folder with its files.
        report: Told what takes long.

    Raises:
        PartsMissing: No Maven, git or Java.
        LabError: The source can't be had or does not compile.
    """
    with tempfile.TemporaryDirectory() as temporary:
        files = Path(temporary) / "source"
        _get(source, files, report)
        scala = {
            path: adapt_source(path.read_text(encoding="utf-8"))
            for path in sorted((files / "src" / "main").rglob("*.scala"))
        }
    if not scala:
        raise LabError(f"{source} has no Scala below src/main: is it spark-s3-shuffle?")
    digest = hashlib.sha256("".join(scala.values()).encode()).hexdigest()[:12]

    def build(folder: Path) -> None:
        report("getting Hadoop's S3 client with Maven and compiling spark-s3-shuffle")
        _maven(
            folder,
            [
                f"org.apache.hadoop:hadoop-aws:{_HADOOP}",
                *(f"software.amazon.awssdk:{name}:{_SDK}"
                  for name in ("s3", "s3-transfer-manager", "sts")),
            ],
            excluded=(*_IN_SPARK, "software.amazon.awssdk:bundle"),
        )  # fmt: skip
        _compile(folder, scala)

    name = f"spark-s3-shuffle-{digest}-spark-{pyspark.__version__}"
    return sorted(build_once(name, build, report).glob("*.jar"))


def adapt_source(text: str) -> str:
    """A file of spark-s3-shuffle as Spark 4.3 takes it.

    Since 4.3 a manager whose shuffles are written before they are read says so by its kind.
    """
    return re.sub(r"\bextends ShuffleManager\b", "extends BlockingShuffleManager", text)


def _get(source: str, target: Path, report: Report) -> None:
    if Path(source).is_dir() and (Path(source) / "build.sbt").exists():
        shutil.copytree(source, target)
        return
    report(f"getting spark-s3-shuffle from {source}")
    # It must not ask a person for a password.
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    clone = ["git", "clone", "--quiet", "--depth", "1", source, str(target)]
    _step("git", clone, target.parent, environment)


def _maven(folder: Path, wanted: Sequence[str], excluded: Sequence[str]) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise PartsMissing("no mvn: install Maven, which brings the jars")
    without = "".join(
        f"<exclusion><groupId>{group}</groupId><artifactId>{name or '*'}</artifactId></exclusion>"
        for group, _, name in (one.partition(":") for one in excluded)
    )
    # What is asked for itself is not excluded.
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
        f"<version>{version}</version><exclusions>{without}</exclusions></dependency>"
        for group, name, version in (one.split(":") for one in wanted)
    )
    (folder / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>blobmsg</groupId>"
        "<artifactId>bench</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )
    options = ["-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    _step("Maven", [maven, "-q", "-B", _COPY_JARS, *options], folder)


def _compile(folder: Path, scala: dict[Path, str]) -> None:
    sources, classes = folder / "source", folder / "classes"
    sources.mkdir()
    classes.mkdir()
    for number, text in enumerate(scala.values()):
        (sources / f"{number}.scala").write_text(text, encoding="utf-8")
    # sbt generates it.
    fields = " ".join(f'val {name} = "bench";' for name in _NAMES)
    (sources / "build.scala").write_text(
        f"package com.ibm\nobject SparkS3ShuffleBuild {{ {fields} }}"
    )
    files = [str(path) for path in sorted(sources.glob("*.scala"))]
    compiler = ["java", "-cp", f"{_SPARK_JARS}/*", "scala.tools.nsc.Main", "-usejavacp", "-nowarn"]
    _step("the Scala compiler", [*compiler, "-d", str(classes), *files], folder)
    _step("jar", ["jar", "cf", str(folder / "s3-shuffle.jar"), "-C", str(classes), "."], folder)


def _step(
    what: str, command: Sequence[str], folder: Path, environment: dict[str, str] | None = None
) -> None:
    try:
        answer = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise PartsMissing(f"no {command[0]}: {what} needs it") from error
    if answer.returncode != 0:
        words = (answer.stdout + answer.stderr).strip()[-2000:]
        raise LabError(f"{what} failed with exit code {answer.returncode}:\n{words}")
