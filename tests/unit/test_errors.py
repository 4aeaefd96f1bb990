from __future__ import annotations

import copy
import pickle

import pytest
from confluent_kafka import KafkaError, KafkaException

from blobmsg import errors
from blobmsg.errors import BlobmsgError, ConfigError, ObjectMissing, StoreTimeout

# The table of STYLE.md, written out: the oracle is not the classes' own attributes.
CODES = {
    "BlobmsgError": (KafkaError._FAIL, False),
    "ConfigError": (KafkaError._INVALID_ARG, False),
    "StoreUnavailable": (KafkaError._TRANSPORT, True),
    "StoreTimeout": (KafkaError._TIMED_OUT, True),
    "StoreDenied": (KafkaError._AUTHENTICATION, False),
    "ObjectMissing": (KafkaError._NOENT, False),
    "ObjectExpired": (KafkaError._AUTO_OFFSET_RESET, False),
    "CorruptSegment": (KafkaError._BAD_MSG, False),
    "UnsupportedFormat": (KafkaError._UNSUPPORTED_FEATURE, False),
}
every_class = pytest.mark.parametrize("name", sorted(CODES))


def make(name: str, message: str = "what, where, what to do", **details: object) -> BlobmsgError:
    error = getattr(errors, name)(message, **details)
    assert isinstance(error, BlobmsgError)
    return error


def test_the_table_lists_every_public_class() -> None:
    assert set(errors.__all__) == set(CODES)


@every_class
def test_is_a_kafka_exception_that_carries_a_kafka_error(name: str) -> None:
    error = make(name)
    code, retriable = CODES[name]

    assert isinstance(error, KafkaException)
    assert isinstance(error.args[0], KafkaError)
    assert error.kafka_error is error.args[0]
    assert error.kafka_error.code() == code
    assert error.kafka_error == code
    assert error.kafka_error.retriable() is retriable
    assert error.kafka_error.fatal() is False
    assert error.kafka_error.str() == "what, where, what to do"
    assert str(error) == "what, where, what to do"


@every_class
def test_survives_pickle_with_code_text_and_details(name: str) -> None:
    error = make(name, "100 % of ünï {text} %s", topic="t", partition=3, kafka_offset=1 << 40)

    again = pickle.loads(pickle.dumps(error))  # noqa: S301  (our own bytes)

    assert type(again) is type(error)
    assert str(again) == str(error) == "100 % of ünï {text} %s"
    assert again.details == {"topic": "t", "partition": 3, "kafka_offset": 1 << 40}
    assert again.kafka_error.code() == error.kafka_error.code()
    assert again.kafka_error.retriable() == error.kafka_error.retriable()


def test_survives_pickle_with_a_code_of_its_own() -> None:
    error = ConfigError("x", code=KafkaError._CONFLICT)

    again = pickle.loads(pickle.dumps(error))  # noqa: S301  (our own bytes)

    assert again.kafka_error.code() == KafkaError._CONFLICT


def test_survives_copy() -> None:
    again = copy.deepcopy(ObjectMissing("gone", key="a/b"))

    assert isinstance(again, ObjectMissing)
    assert again.key == "a/b"


def test_details_are_attributes() -> None:
    error = StoreTimeout("slow", key="a/b", bucket="c")

    assert error.key == "a/b"
    assert error.bucket == "c"


def test_an_unknown_detail_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="'StoreTimeout' has no attribute 'topic'"):
        _ = StoreTimeout("slow").topic


def test_a_long_text_is_not_cut() -> None:
    assert StoreTimeout("x" * 5000).kafka_error.str() == "x" * 5000


def test_is_caught_as_the_stock_exception_with_the_cause_kept() -> None:
    cause = OSError("socket")

    with pytest.raises(KafkaException) as caught:
        raise StoreTimeout("slow") from cause

    assert caught.value.__cause__ is cause
