"""Checkout: an HTTP service that takes orders and publishes them.

    POST /orders   {"customer": "42", "cents": 1999}

answers 202 once the order is queued, 503 when the queue is full, 400 for anything else. SIGTERM
ends it when every order that it took is delivered.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

TOPIC = os.environ.get("ORDERS_TOPIC", "orders")
CONF: dict[str, Any] = {
    "bootstrap.servers": os.environ["BOOTSTRAP_SERVERS"],
    "enable.idempotence": True,
}


class Server(ThreadingHTTPServer):
    """Waits for the requests under way when it is closed."""

    daemon_threads = False


class Checkout:
    """Publishes orders and counts what became of them."""

    def __init__(self) -> None:
        self.delivered = 0
        self.failed = 0
        self._producer = Producer(CONF)
        self._is_stopping = threading.Event()
        self._serving = threading.Thread(target=self._serve_callbacks)
        self._serving.start()

    def publish(self, customer: str, cents: int) -> None:
        """Queue one order; BufferError when there is no room."""
        order = json.dumps({"customer": customer, "cents": cents})
        self._producer.produce(TOPIC, key=customer, value=order, on_delivery=self._on_delivery)

    def close(self) -> None:
        """Deliver what is queued."""
        self._is_stopping.set()
        self._serving.join()
        self._producer.flush()

    def _serve_callbacks(self) -> None:
        while not self._is_stopping.is_set():
            self._producer.poll(0.1)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.delivered += 1
        else:
            self.failed += 1
            print(f"order of {message.key()!r} is lost: {error}", file=sys.stderr)


def handler_for(checkout: Checkout) -> type[BaseHTTPRequestHandler]:
    """A request handler that publishes through this checkout."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 5  # of a connection that says nothing

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            try:
                order = json.loads(body)
                checkout.publish(str(order["customer"]), int(order["cents"]))
            except BufferError:
                self._answer(503)
            except (ValueError, KeyError, TypeError):
                self._answer(400)
            else:
                self._answer(202)

        def _answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            """Say nothing for each request."""

    return Handler


def main() -> int:
    checkout = Checkout()
    port = int(os.environ.get("PORT", "8080"))
    server = Server(("127.0.0.1", port), handler_for(checkout))
    signal.signal(
        signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown, daemon=True).start()
    )
    print(f"listening on port {server.server_port}", flush=True)
    server.serve_forever()
    server.server_close()
    checkout.close()
    print(f"delivered {checkout.delivered} orders, {checkout.failed} failed", flush=True)
    return 1 if checkout.failed else 0


if __name__ == "__main__":
    sys.exit(main())
