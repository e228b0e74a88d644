"""The cached blocks of the current engine, in the form of vLLM's KV events: numbered batches for routers, on ZeroMQ.

PUB publishes batches, ROUTER gives those that a subscriber has missed. The sockets never wait for a subscriber: a slow
reader misses batches, and sees that by their numbers. All of it runs on the front's event loop; nothing else imports
zmq, which is an extra. The engine has the blocks themselves (engine/kv_blocks.py).

    PUB     topic │ number │ batch
    ROUTER  ◀── empty │ first number wanted
            ──▶ empty │ topic │ number │ batch, for each that is kept, then empty │ empty │ -1 │ empty

Numbers have 8 bytes, big-endian; -1 is signed. They go on when an engine dies: its blocks are cleared, and those of its
successor follow. A batch is `[seconds, [event, …], 0]` in MessagePack; its events are maps with the class's name as
`type`. Source: vllm/distributed/kv_events.py of vLLM 0.26.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import islice
from urllib.parse import urlsplit

import zmq
import zmq.asyncio

from worker.config.settings import Settings
from worker.errors import BindFailed
from worker.observe.log_lines import get_logger
from worker.server.front.supervision import Fail, ended, supervised
from worker.wire.encoding import encode_messagepack
from worker.wire.messages import AllBlocksCleared, BlockRemoved, BlockStored

log = get_logger()

_NUMBER_BYTES = 8
_END = (-1).to_bytes(_NUMBER_BYTES, "big", signed=True)

_TURN = 32
"""The number of batches of a replay after which the event loop has its turn: they take half a millisecond."""

_LONGEST_REQUEST_BYTES = 256
"""The longest frame; a connection that sends a longer one is closed."""

MAX_BATCHES = 10_000
"""The number of batches that are kept, and that may wait for a subscriber; vLLM keeps as many."""

MAX_BYTES = 64 * 1024 * 1024
"""The bytes of all kept batches: a batch about a long prompt has a hundred times those of a usual one."""


_RANK = 0
"""The worker's place among engines of one model (data_parallel_rank)."""

Events = tuple[BlockStored | BlockRemoved | AllBlocksCleared, ...]


class KvEvents:
    """Makes and keeps batches. `send` publishes one under its number, and neither waits nor raises; `clock` gives the
    seconds since 1970."""

    def __init__(self, send: Callable[[int, bytes], None], clock: Callable[[], float]) -> None:
        self._send = send
        self._clock = clock
        self._kept: deque[bytes] = deque()
        self._n_kept_bytes = 0
        self.n_batches = 0
        """The number of published batches, which is the number of the next one."""

    def since(self, number: int) -> list[tuple[int, bytes]]:
        """Return the batches from that number on, as far as they are kept, in order and with their numbers."""
        first = self.n_batches - len(self._kept)
        start = min(max(number, first), self.n_batches)
        return list(enumerate(islice(self._kept, start - first, None), start))

    def publish(self, events: Events) -> None:
        batch = encode_messagepack((self._clock(), events, _RANK))
        self._send(self.n_batches, batch)
        self._kept.append(batch)
        self._n_kept_bytes += len(batch)
        self.n_batches += 1
        while len(self._kept) > MAX_BATCHES or self._n_kept_bytes > MAX_BYTES:
            self._n_kept_bytes -= len(self._kept.popleft())


@asynccontextmanager
async def published(settings: Settings, fail: Fail) -> AsyncIterator[KvEvents]:
    """Publish KV events at --kv-events for as long as the block lasts. Raises: BindFailed."""
    assert settings.kv_events is not None
    endpoint, topic = settings.kv_events, settings.kv_events_topic or ""
    port = urlsplit(endpoint).port
    with zmq.Context() as context, context.socket(zmq.PUB) as pub, context.socket(zmq.ROUTER) as router:
        router.maxmsgsize = _LONGEST_REQUEST_BYTES
        heard_at = _bind(pub, endpoint)
        asked_at = _bind(router, f"{endpoint.rpartition(':')[0]}:{port + 1 if port else 0}")

        def send(number: int, batch: bytes) -> None:
            pub.send_multipart([topic.encode(), _packed(number), batch])

        events = KvEvents(send, time.time)
        replaying = supervised(_replay(router, topic.encode(), events), fail, "the replay of KV events")
        log.info("kv_events_listening", endpoint=heard_at, replay_endpoint=asked_at, topic=topic)
        try:
            yield events
        finally:
            await ended(replaying)


def _bind(sock: zmq.Socket[bytes], endpoint: str) -> str:
    """Bind the socket and return its address. It closes without waiting for readers, and has room for a replay."""
    sock.linger = 0
    sock.sndhwm = MAX_BATCHES + 1
    sock.ipv6 = "[" in endpoint
    try:
        sock.bind(endpoint)
    except zmq.ZMQError as error:
        reason = os.strerror(error.errno or 0)
        raise BindFailed(
            f"Failed to bind --kv-events to {endpoint}: {reason}; choose another address or port"
        ) from error
    return sock.getsockopt_string(zmq.LAST_ENDPOINT)


async def _replay(router: zmq.Socket[bytes], topic: bytes, events: KvEvents) -> None:
    """Answer requests, one after the other; other frames are not answered. This never returns by itself."""
    with zmq.asyncio.Socket.from_socket(router) as requests:
        while True:
            peer, *request = await requests.recv_multipart()
            if len(request) != 2 or len(request[1]) != _NUMBER_BYTES:
                continue
            for n_sent, (number, batch) in enumerate(events.since(int.from_bytes(request[1], "big"))):
                if n_sent % _TURN == 0:
                    await asyncio.sleep(0)
                router.send_multipart([peer, b"", topic, _packed(number), batch])
            router.send_multipart([peer, b"", b"", _END, b""])


def _packed(number: int) -> bytes:
    return number.to_bytes(_NUMBER_BYTES, "big")
