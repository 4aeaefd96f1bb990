"""blobmsg for Spark: DataFrames repartitioned through the store, topics as a source, histories.

Needs `pip install "blobmsg[spark]"`, on executors as well.
"""

from blobmsg_spark.histories import Addition
from blobmsg_spark.history import clean_history, history_files, read_history
from blobmsg_spark.reconcile_job import reconcile
from blobmsg_spark.reconcile_stream import reconcile_stream
from blobmsg_spark.row_types import UnsupportedColumn
from blobmsg_spark.shuffle import Shuffle, repartition
from blobmsg_spark.source import BlobmsgSource, register_source
from blobmsg_spark.usage import ExchangeUsage, StageUsage

__all__ = [
    "Addition",
    "BlobmsgSource",
    "ExchangeUsage",
    "Shuffle",
    "StageUsage",
    "UnsupportedColumn",
    "clean_history",
    "history_files",
    "read_history",
    "reconcile",
    "reconcile_stream",
    "register_source",
    "repartition",
]
