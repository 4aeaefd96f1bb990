"""Tells Spark how rows are partitioned that have come out of an exchange of ours.

After `mapInArrow` Spark does not know it, and would shuffle again for a `groupBy` or a join on the
same columns. Only Spark's private classes can say it, through the JVM of a classic session: as they
are in Spark 4.3; refused with a reason where there are none or others.
"""
# ruff: noqa: SLF001  (there is no public way from a DataFrame to its plan)

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import __version__ as spark_version
from pyspark.sql import DataFrame

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column

    JavaObject: TypeAlias = Any  # py4j makes them up as they are asked for

__all__ = ["check_can_keep", "with_hash_partitioning"]

_WITHOUT: Final = (
    "Leave keep_partitioning off, then Spark shuffles once more for a groupBy; or use "
    "Shuffle.grouped(), which needs nothing of this"
)


def check_can_keep(df: DataFrame, keys: Sequence[object]) -> None:
    """Refuse what can't be told to Spark before anything runs.

    Args:
        df: The rows.
        keys: What they will be partitioned by.

    Raises:
        NotImplementedError: A session of Spark Connect, which has no JVM of its own.
        ValueError: No keys.
    """
    if not keys:
        raise ValueError(
            "keep_partitioning needs columns: rows that are dealt in turn have no partitioning"
        )
    if not hasattr(df, "_jdf"):
        raise NotImplementedError(
            "keep_partitioning needs a classic session of Spark: Spark Connect does not let "
            f"Python say how rows are partitioned. {_WITHOUT}"
        )


def with_hash_partitioning(
    placed: DataFrame, df: DataFrame, n: int, keys: Sequence[Column | str]
) -> DataFrame:
    """The rows of an exchange as rows whose partitioning Spark knows.

    With adaptive execution Spark runs the map stage now, as for `df.rdd`: what reads an RDD is
    planned when its stages are.

    Args:
        placed: What the exchange gives.
        df: What went into it.
        n: How many partitions there are.
        keys: By whose hash rows of `df` were placed, at least one.

    Returns:
        Rows with the very columns of `df`, so that `df["key"]` still means one of them, as after
        Spark's own repartitioning.

    Raises:
        NotImplementedError: The private classes of this Spark are not those of Spark 4.3.
    """
    plan = _Plan(df)
    with _guarded():
        # Before anything runs: a class that is not there is to be found now.
        plan.of_rows(plan.logical_rdd(plan.no_rows(n), plan.unknown(n)))
    rdd = placed._jdf.queryExecution().toRdd()
    if rdd.getNumPartitions() != n:
        raise AssertionError(f"{rdd.getNumPartitions()} partitions came out of an exchange of {n}")
    with _guarded():
        unknown = plan.of_rows(plan.logical_rdd(rdd, plan.unknown(n)))
        known = plan.hash_partitioning(plan.expressions(unknown.select(*keys)), n)
        return plan.of_rows(plan.logical_rdd(rdd, known))


@contextmanager
def _guarded() -> Iterator[None]:
    """What py4j says of classes and methods that are not there, in words that help."""
    try:
        yield
    except Py4JJavaError:
        raise  # an exception of Spark's own
    except (Py4JError, TypeError) as error:  # TypeError: a class that is a package to py4j
        reason, _, _ = str(error).partition("\n\tat ")  # the JVM's stack follows
        raise NotImplementedError(
            "keep_partitioning needs private classes of Spark as they are in 4.3, and Spark "
            f"{spark_version} has others ({reason}). {_WITHOUT}"
        ) from error


class _Plan:
    """Makes logical plans with the columns of a DataFrame. Threads: one at a time."""

    def __init__(self, df: DataFrame) -> None:
        self._spark: Any = df.sparkSession
        jvm: Any = self._spark._jvm
        self._scala = jvm.scala
        self._seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
        self._sql = jvm.org.apache.spark.sql
        self._physical = jvm.org.apache.spark.sql.catalyst.plans.physical
        self._query = df._jdf.queryExecution()
        self._session = df._jdf.sparkSession()

    def no_rows(self, n: int) -> JavaObject:
        """An RDD of so many empty partitions."""
        return self._session.sparkContext().emptyRDD(self._scala.reflect.ClassTag.Any())

    def unknown(self, n: int) -> JavaObject:
        return self._physical.UnknownPartitioning(n)

    def hash_partitioning(self, expressions: Sequence[JavaObject], n: int) -> JavaObject:
        return self._physical.HashPartitioning(self._seq(list(expressions)), n)

    def logical_rdd(self, rdd: JavaObject, partitioning: JavaObject) -> JavaObject:
        """A plan that reads an RDD of rows of this DataFrame."""
        is_streaming = is_checkpoint = False
        return self._sql.execution.LogicalRDD(
            self._query.analyzed().output(),
            rdd,
            partitioning,
            self._seq([]),  # in no order
            is_streaming,
            self._scala.Option.empty(),
            self._session,
            # Its size decides, as that of `df` would, whether a join broadcasts it.
            self._scala.Some(self._query.optimizedPlan().stats()),
            self._scala.Option.empty(),
            is_checkpoint,
        )

    def of_rows(self, plan: JavaObject) -> DataFrame:
        return DataFrame(self._sql.classic.Dataset.ofRows(self._session, plan), self._spark)

    def expressions(self, selected: DataFrame) -> list[JavaObject]:
        """What a DataFrame selects, as the optimizer will write it in a `groupBy` of the same."""
        plan = selected._jdf.queryExecution().optimizedPlan()
        # Without Project it selects all columns as they are.
        is_project = plan.nodeName() == "Project"
        columns = plan.projectList() if is_project else plan.output()
        found = [columns.apply(number) for number in range(columns.size())]
        return [one.child() if one.nodeName() == "Alias" else one for one in found]
