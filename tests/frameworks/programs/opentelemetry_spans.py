"""An application whose confluent-kafka clients OpenTelemetry instruments; tells all its spans.

With `patched` in its plan, the instrumented clients are ours; nothing else here knows of them.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

plan: dict[str, Any] = json.loads(sys.argv[1])
if plan["patched"]:
    import blobmsg

    blobmsg.patch()

import confluent_kafka
from opentelemetry.instrumentation.confluent_kafka import ConfluentKafkaInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
tracer = provider.get_tracer("application")
instrumentor = ConfluentKafkaInstrumentor()

producer_conf = {"bootstrap.servers": plan["bootstrap_servers"]}
consumer_conf = {**producer_conf, "group.id": plan["group"], "auto.offset.reset": "earliest"}
if plan["how"] == "instrument":
    instrumentor.instrument(tracer_provider=provider)
    producer = confluent_kafka.Producer(producer_conf)
    consumer = confluent_kafka.Consumer(consumer_conf)
else:
    producer = instrumentor.instrument_producer(confluent_kafka.Producer(producer_conf), provider)
    consumer = instrumentor.instrument_consumer(confluent_kafka.Consumer(consumer_conf), provider)


def say(event: str, **facts: Any) -> None:
    os.write(1, (json.dumps({"event": event, **facts}) + "\n").encode())


def handle(message: Any) -> None:
    error = message.error()
    assert error is None, error
    with tracer.start_as_current_span(f"handle {message.value().decode()}"):
        say(
            "handled",
            key=message.key().decode(),
            headers=[[name, value.decode()] for name, value in message.headers()],
            place=f"{message.topic()}.{message.partition()}.{message.offset()}",
        )


reported: list[str] = []
for number in range(plan["count"]):
    with tracer.start_as_current_span(f"order {number}"):
        producer.produce(
            plan["topic"],
            b"order %d" % number,
            key=b"customer-%d" % (number % 3),
            headers=[("number", b"%d" % number)],
            on_delivery=lambda error, message: reported.append(str(error)),
        )
assert producer.flush(60) == 0
assert reported == ["None"] * plan["count"]

consumer.subscribe([plan["topic"]])
for _ in range(plan["count"] // 2):
    message = None
    while message is None:
        message = consumer.poll(1.0)
    handle(message)
for message in consumer.consume(plan["count"] - plan["count"] // 2, 60.0):
    handle(message)
consumer.close()


def identity(context: Any) -> str:
    return f"{context.trace_id:032x}-{context.span_id:016x}"


for span in exporter.get_finished_spans():
    say(
        "span",
        name=span.name,
        kind=span.kind.name,
        id=identity(span.context),
        parent=None if span.parent is None else identity(span.parent),
        links=[identity(link.context) for link in span.links],
        attributes=dict(span.attributes),
    )
say("ended")
