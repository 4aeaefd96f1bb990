"""Functions of groups in the forms that Spark's `applyInArrow` knows, beside it."""

from __future__ import annotations

from collections.abc import Iterator  # noqa: TC003  (Spark evaluates hints)
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as F

from blobmsg_spark import Shuffle
from tests.helpers.spark_rows import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

_SCHEMA = "few long, odd boolean, total long"


@pytest.fixture(scope="module")
def numbers(spark: SparkSession) -> DataFrame:
    return spark.range(0, 2000, 1, 3).select(
        "id", (F.col("id") % 7).alias("few"), (F.col("id") % 2 == 1).alias("odd")
    )


def _forms() -> list[Any]:
    def of_rows(rows):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        keys = {name: [rows.column(name)[0]] for name in ("few", "odd")}
        return pa.table({**keys, "total": [pc.sum(rows.column("id"))]})

    def of_keys_and_rows(keys, rows):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        few, odd = (key.as_py() for key in keys)
        return pa.table({"few": [few], "odd": [odd], "total": [pc.sum(rows.column("id"))]})

    def of_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in batches:  # the groups of this test are one batch each
            yield pa.record_batch(
                {
                    "few": rows.column("few")[:1],
                    "odd": rows.column("odd")[:1],
                    "total": pa.array([pc.sum(rows.column("id")).as_py()]),
                }
            )

    def of_keys_and_batches(
        keys: tuple[pa.Scalar, ...], batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        few, odd = (key.as_py() for key in keys)
        total = sum(pc.sum(rows.column("id")).as_py() for rows in batches)
        yield pa.record_batch({"few": [few], "odd": [odd], "total": [total]})

    forms = (of_rows, of_keys_and_rows, of_batches, of_keys_and_batches)
    return [pytest.param(form, id=form.__name__) for form in forms]


@pytest.mark.parametrize("func", _forms())
def test_a_function_is_called_as_spark_calls_it(
    numbers: DataFrame, store: str, func: Callable[..., Any]
) -> None:
    with Shuffle(numbers.sparkSession, store) as shuffle:
        ours = rows_of(shuffle.grouped(numbers, 3, ["few", "odd"], func=func, schema=_SCHEMA))

    native = numbers.groupBy(["few", "odd"]).applyInArrow(func, _SCHEMA)
    assert len(ours) == 14
    assert ours == rows_of(native)


def test_a_function_of_three_arguments_is_refused_before_the_job(
    numbers: DataFrame, store: str
) -> None:
    with (
        Shuffle(numbers.sparkSession, store) as shuffle,
        pytest.raises(TypeError, match=r"takes 3 arguments: expected the rows of a group"),
    ):
        shuffle.grouped(numbers, 3, "few", func=lambda _a, _b, _c: iter([]), schema=_SCHEMA)
