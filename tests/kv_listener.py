"""A router's ends of a worker's KV events: what it hears, and what it asks for afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import zmq

from tests.worker_process import PATIENCE_S

END = (-1).to_bytes(8, "big", signed=True)

Batch = tuple[int, bytes]
"""Its number, and the bytes."""


@dataclass
class Listener:
    """`topic` is what the publisher is to say; every frame is checked."""

    sub: zmq.Socket[bytes]
    dealer: zmq.Socket[bytes]
    topic: bytes

    def next(self) -> Batch:
        """The next batch that is heard."""
        topic, number, batch = self.sub.recv_multipart()
        assert (topic, len(number)) == (self.topic, 8)
        return int.from_bytes(number, "big"), batch

    def ask(self, *request: bytes) -> None:
        self.dealer.send_multipart(request)

    def replayed(self, start: int) -> list[Batch]:
        """All batches from the number on that the publisher has kept."""
        self.ask(b"", start.to_bytes(8, "big"))
        found: list[Batch] = []
        while (answer := self.dealer.recv_multipart()) != [b"", b"", END, b""]:
            empty, topic, number, batch = answer
            assert (empty, topic, len(number)) == (b"", self.topic, 8)
            found.append((int.from_bytes(number, "big"), batch))
        return found


@contextmanager
def listening(endpoints: dict[str, Any], *, rcvhwm: int = 0) -> Iterator[Listener]:
    """`endpoints`: the worker's log line `kv_events_listening`. `rcvhwm`: how many batches the ears hold; 0 is all."""
    with zmq.Context() as context, context.socket(zmq.SUB) as sub, context.socket(zmq.DEALER) as dealer:
        for sock in (sub, dealer):
            sock.linger = 0
            sock.rcvtimeo = int(PATIENCE_S * 1000)
            sock.rcvhwm = rcvhwm
        sub.subscribe(endpoints["topic"])
        sub.connect(endpoints["endpoint"])
        dealer.connect(endpoints["replay_endpoint"])
        yield Listener(sub, dealer, endpoints["topic"].encode())
