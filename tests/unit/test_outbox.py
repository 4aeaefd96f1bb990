from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from blobmsg.outbox import refuses_batch


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_MSG,
        87,  # INVALID_RECORD
        -138,  # _INVALID_DIFFERENT_RECORD
    ],
)
def test_errors_of_a_whole_batch(code: int) -> None:
    assert refuses_batch(KafkaError(code))


@pytest.mark.parametrize(
    "error",
    [
        KafkaError(KafkaError._MSG_TIMED_OUT),
        KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED),
        KafkaError(KafkaError.NOT_ENOUGH_REPLICAS),
        ValueError("no error of Kafka's"),
    ],
)
def test_errors_that_say_nothing_of_the_batch(error: object) -> None:
    assert not refuses_batch(error)
