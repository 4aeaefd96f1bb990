"""blobmsg for Spark: DataFrames repartitioned through the store, and topics as a source.

Needs `pip install "blobmsg[spark]"`, on executors as well.
"""

from blobmsg_spark.row_types import UnsupportedColumn
from blobmsg_spark.shuffle import Shuffle, repartition
from blobmsg_spark.source import BlobmsgSource, register_source
from blobmsg_spark.usage import ExchangeUsage, StageUsage

__all__ = [
    "BlobmsgSource",
    "ExchangeUsage",
    "Shuffle",
    "StageUsage",
    "UnsupportedColumn",
    "register_source",
    "repartition",
]
