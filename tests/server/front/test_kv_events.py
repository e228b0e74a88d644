"""Batches read without our encoder, their numbers, those that are kept; and the two sockets over loopback."""

import asyncio
import io
import struct
from collections.abc import Callable
from typing import Any

import pytest
import zmq

from tests.kv_listener import Listener, listening
from tests.kv_mirror import Mirror, gone, kept, unpacked
from tests.loops import on_a_loop
from tests.observe.log_lines import logging_is_put_back, only_line, to
from worker.config.settings import Settings
from worker.errors import BindFailed, StartupError
from worker.observe.metrics import Metrics
from worker.server.front.kv_events import MAX_BATCHES, MAX_BYTES, KvEvents, published
from worker.server.front.state import Front
from worker.wire.jobs import TokenId
from worker.wire.messages import AllBlocksCleared, BlockHash, BlocksChanged, BlockStored, Medium

PARENT, FIRST, SECOND = BlockHash(7), BlockHash(2**64 - 1), BlockHash(9)
TOKENS = tuple(TokenId(token) for token in range(100_000, 100_032))


def stored(medium: Medium = "GPU", parent: BlockHash | None = PARENT) -> BlockStored:
    return kept(medium, parent, (FIRST, SECOND), TOKENS)


class Published:
    """KV events, and what was sent of them."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes]] = []
        self.events = KvEvents(lambda *batch: self.sent.append(batch), clock=lambda: 1789095808.5)


def test_a_batch_is_what_vllm_sends() -> None:
    """The fields' names and their order are those of vllm/distributed/kv_events.py at 0.26; the order means nothing to
    readers of maps, and everything to those of the bytes."""
    published = Published()
    published.events.publish((stored(), stored("CPU", None), gone("CPU", (SECOND, FIRST))))
    published.events.publish((AllBlocksCleared(),))
    (_, changed), (_, cleared) = published.sent
    seconds, events, rank = unpacked(changed)
    assert (seconds, rank) == (1789095808.5, 0)
    names = ["type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"]
    *kept_, gone_ = [list(event.items()) for event in events]
    assert kept_ == [
        [*zip(names, ("BlockStored", [FIRST, SECOND], parent, [*TOKENS], 16, None, medium, None), strict=True)]
        for medium, parent in (("GPU", PARENT), ("CPU", None))
    ]
    assert gone_ == [("type", "BlockRemoved"), ("block_hashes", [SECOND, FIRST]), ("medium", "CPU")]
    clear = b"\xa4type\xb0AllBlocksCleared"
    assert cleared == b"\x93\xcb" + struct.pack(">d", 1789095808.5) + b"\x91\x81" + clear + b"\x00"


def test_numbers_count_from_zero_and_the_last_batches_are_kept_under_their_own() -> None:
    published = Published()
    n_sent = MAX_BATCHES + 3
    for _ in range(n_sent):
        published.events.publish((AllBlocksCleared(),))
    assert [number for number, _ in published.sent] == list(range(n_sent))
    assert published.events.since(0) == published.events.since(3) == published.sent[3:]
    assert published.events.since(n_sent - 1) == published.sent[-1:]
    assert published.events.since(n_sent) == published.events.since(2**64 - 1) == []


def test_long_batches_are_forgotten_by_their_bytes() -> None:
    published = Published()
    long = kept("CPU", None, (FIRST,) * 2**15, TOKENS[:16] * 2**15)
    for _ in range(25):
        published.events.publish((long,))
    left = published.events.since(0)
    assert left == published.sent[-len(left) :]
    assert len(left) == MAX_BYTES // len(left[0][1]) < 25


@on_a_loop
async def test_the_blocks_of_a_dead_engine_are_cleared_and_numbers_go_on() -> None:
    published, mirror = Published(), Mirror()

    front = Front(Settings(model="m.gguf", worker_id="w-1"), Metrics("w-1"))
    front.kv_events = published.events
    front.on_report(BlocksChanged(changes=(stored(parent=None),)))
    front.on_restarting("it was ended by SIGKILL", "")
    front.on_report(BlocksChanged(changes=(stored(parent=None),)))
    assert b'worker_kv_event_batches_total{worker_id="w-1"} 3.0' in front.scrape(None)[0]
    assert [number for number, _ in published.sent] == [0, 1, 2]
    n_blocks = []
    for _, batch in published.sent:
        mirror.hear_batch(batch)
        n_blocks.append(len(mirror.blocks("GPU")))
    assert n_blocks == [2, 0, 2]


__all__ = ["logging_is_put_back"]  # a fixture that every test here uses
A_KILOBYTE = (gone("CPU", (BlockHash(2**63),) * 110),)


def fail(error: StartupError) -> None:
    raise AssertionError from error


def with_listener(
    play: Callable[[KvEvents, Listener], Any], *, endpoint: str = "tcp://127.0.0.1:0", topic: str = "", rcvhwm: int = 0
) -> Any:
    """Publish on a loop, while `play` publishes and listens on a thread of its own, where waiting is allowed."""
    told = io.StringIO()
    to(told)

    async def performance() -> Any:
        settings = Settings(kv_events=endpoint, kv_events_topic=topic)
        async with published(settings, fail) as events:
            with listening(only_line(told), rcvhwm=rcvhwm) as listener:
                return await asyncio.to_thread(play, events, listener)

    return asyncio.run(performance())


def next_heard(events: KvEvents, listener: Listener) -> int:
    """The number of the next batch that the listener hears; where it has heard all, another one is published. Its
    subscription, too, takes a moment.
    """
    while not listener.sub.poll(5):
        events.publish((AllBlocksCleared(),))
    return listener.next()[0]


@pytest.mark.parametrize("topic", ["", "kv@10.0.0.1@llama"])
def test_who_comes_late_asks_for_what_was_and_hears_what_comes(topic: str) -> None:
    def play(events: KvEvents, listener: Listener) -> None:
        for _ in range(100):
            events.publish((AllBlocksCleared(),))
        assert listener.replayed(0) == events.since(0)
        assert listener.replayed(70) == events.since(70)
        assert listener.replayed(100) == []
        first = next_heard(events, listener)
        events.publish(A_KILOBYTE)
        expected = events.since(first + 1)
        assert [listener.next() for _ in expected] == expected

    with_listener(play, topic=topic)


def test_what_is_no_request_is_not_answered_and_does_no_harm() -> None:
    def play(events: KvEvents, listener: Listener) -> None:
        events.publish((AllBlocksCleared(),))
        for request in ([b""], [b"", b""], [b"", b"1"], [b"", b"12345678", b""], [bytes(8)], [b"", bytes(200)]):
            listener.ask(*request)
        assert listener.replayed(0) == events.since(0), "nothing came before it"

    with_listener(play)


def test_a_request_of_megabytes_costs_its_sender_the_connection() -> None:
    def play(events: KvEvents, listener: Listener) -> None:
        events.publish((AllBlocksCleared(),))
        listener.ask(b"", bytes(2**20))
        told = {
            "topic": listener.topic.decode(),
            "endpoint": listener.sub.getsockopt_string(zmq.LAST_ENDPOINT),
            "replay_endpoint": listener.dealer.getsockopt_string(zmq.LAST_ENDPOINT),
        }
        with listening(told) as another:
            assert another.replayed(0) == events.since(0)

    with_listener(play)


@pytest.mark.long
def test_a_slow_subscriber_delays_no_other_and_sees_the_gap_and_asks() -> None:
    def play(events: KvEvents, listener: Listener) -> None:
        next_heard(events, listener)
        for _ in range(3 * MAX_BATCHES):
            events.publish(A_KILOBYTE)
        number, _ = listener.next()
        while (following := next_heard(events, listener)) == number + 1:
            number = following
        assert following > number + 1, "it has missed some"
        assert listener.replayed(number + 1) == events.since(0), "and is given what is kept of them"

    with_listener(play, rcvhwm=1)


@pytest.mark.parametrize("offset", [0, 1])
@on_a_loop
async def test_a_port_that_is_taken_is_named(offset: int) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as other:
        port = other.bind_to_random_port("tcp://127.0.0.1", min_port=20_000, max_port=30_000)
        settings = Settings(kv_events=f"tcp://127.0.0.1:{port - offset}")
        with pytest.raises(BindFailed, match=f"--kv-events to tcp://127.0.0.1:{port}: Address already in use"):
            async with published(settings, fail):
                raise AssertionError("it began")
