"""`format("blobmsg")`: records of Kafka topics, whose payload may lie in the store.

Spark's view of it; what is read and how stands in `batch_source` and `stream_source`, what is
written in `sink`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from blobmsg.errors import ConfigError
from blobmsg_spark.batch_source import BatchSource
from blobmsg_spark.by_value import reduce_state_by_value
from blobmsg_spark.sink import BatchSink, StreamSink
from blobmsg_spark.sink_options import parse_sink_options
from blobmsg_spark.source_options import parse_source_options
from blobmsg_spark.source_schema import spark_schema
from blobmsg_spark.stream_source import StreamSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from blobmsg_spark.source_options import SourceOptions

__all__ = ["BlobmsgSource", "register_source"]


class BlobmsgSource(DataSource):
    """Source and sink; options as for spark-sql-kafka: docs/spark_source.md, docs/spark_sink.md."""

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_state_by_value(self)

    @classmethod
    def name(cls) -> str:
        """What `format` gets."""
        return "blobmsg"

    def schema(self) -> StructType:
        """The columns; the first that Spark asks for, so wrong options show here."""
        options = parse_source_options(self.options)
        return spark_schema(include_headers=options.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`.

        Raises:
            ConfigError: An option is wrong, or the user gave columns.
        """
        options = parse_source_options(self.options, is_streaming=False)
        _check_schema(schema, options)
        return BatchSource(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For `spark.readStream`.

        Raises:
            ConfigError: An option is wrong, or the user gave columns.
        """
        options = parse_source_options(self.options, is_streaming=True)
        _check_schema(schema, options)
        return StreamSource(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For `df.write`.

        Raises:
            ConfigError: An option or a column is wrong, or the mode is `overwrite`.
        """
        return BatchSink(parse_sink_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """For `df.writeStream`; in complete mode each micro-batch is appended as a whole.

        Raises:
            ConfigError: An option or a column is wrong.
        """
        return StreamSink(parse_sink_options(self.options), schema)


def register_source(spark: SparkSession) -> None:
    """Make `format("blobmsg")` known to a session, classic or Connect.

    Args:
        spark: The session.
    """
    spark.dataSource.register(BlobmsgSource)


def _check_schema(schema: StructType, options: SourceOptions) -> None:
    expected = spark_schema(include_headers=options.include_headers)
    if schema != expected:
        raise ConfigError(
            f'format("blobmsg") has columns of its own, {expected.simpleString()}, not '
            f"{schema.simpleString()}: leave .schema(...) out and select from them"
        )
