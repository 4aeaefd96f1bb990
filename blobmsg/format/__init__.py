"""The formats: bytes to values and back, as `docs/format.md` specifies them.

Pure: no threads, network, clock or environment. Whatever the bytes, a decoder raises only
`FormatError` and takes no memory for what they merely claim.
"""

from blobmsg.format.batch_object import (
    MAX_INDEX_BYTES,
    TRAILER_BYTES,
    IndexEntry,
    decode_batch_object_index,
    encode_batch_object,
    index_range,
)
from blobmsg.format.checksum import crc32
from blobmsg.format.codec import Codec, compress, decompress, require_codec
from blobmsg.format.commit_metadata import (
    MAX_COMMIT_METADATA_BYTES,
    decode_commit_metadata,
    encode_commit_metadata,
)
from blobmsg.format.encoded_segment import EncodedSegment, encode_object_segment
from blobmsg.format.errors import FormatError, UnsupportedFormatError
from blobmsg.format.notification import (
    HEADER_NAME,
    HEADER_VALUE,
    NOTIFICATION_MAGIC,
    Limits,
    Notification,
    Part,
    decode_notification,
    encode_notification,
    is_notification,
)
from blobmsg.format.object_key import (
    OBJECT_KEY_PATTERN,
    RETENTION_CLASSES,
    ObjectKey,
    RetentionClass,
    expiry_hour,
    retention_class,
)
from blobmsg.format.ranges import ByteRange, coalesce
from blobmsg.format.segment import (
    MAX_SEGMENT_BYTES,
    MAX_SEGMENT_RECORDS,
    Columns,
    Header,
    Headers,
    Segment,
    SegmentLayout,
    decode_segment,
    encode_segment,
    segment_chunks,
    segment_layout,
)

__all__ = [
    "HEADER_NAME",
    "HEADER_VALUE",
    "MAX_COMMIT_METADATA_BYTES",
    "MAX_INDEX_BYTES",
    "MAX_SEGMENT_BYTES",
    "MAX_SEGMENT_RECORDS",
    "NOTIFICATION_MAGIC",
    "OBJECT_KEY_PATTERN",
    "RETENTION_CLASSES",
    "TRAILER_BYTES",
    "ByteRange",
    "Codec",
    "Columns",
    "EncodedSegment",
    "FormatError",
    "Header",
    "Headers",
    "IndexEntry",
    "Limits",
    "Notification",
    "ObjectKey",
    "Part",
    "RetentionClass",
    "Segment",
    "SegmentLayout",
    "UnsupportedFormatError",
    "coalesce",
    "compress",
    "crc32",
    "decode_batch_object_index",
    "decode_commit_metadata",
    "decode_notification",
    "decode_segment",
    "decompress",
    "encode_batch_object",
    "encode_commit_metadata",
    "encode_notification",
    "encode_object_segment",
    "encode_segment",
    "expiry_hour",
    "index_range",
    "is_notification",
    "require_codec",
    "retention_class",
    "segment_chunks",
    "segment_layout",
]
