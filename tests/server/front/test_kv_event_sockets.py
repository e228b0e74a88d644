"""The two sockets over loopback: what is heard, what is asked for, who is slow, and what a start fails on."""

import asyncio
import io
from collections.abc import Callable
from typing import Any

import pytest
import zmq

from tests.kv_listener import Listener, listening
from tests.observe.log_lines import logging_is_put_back, only_line, to
from worker.config.settings import Settings
from worker.errors import BindFailed, StartupError
from worker.server.front.kv_event_sockets import published
from worker.server.front.kv_events import MAX_BATCHES, KvEvents
from worker.wire.blocks import BlockHash, BlocksRemoved

__all__ = ["logging_is_put_back"]  # a fixture that every test here uses

A_KILOBYTE = (BlocksRemoved("CPU", (BlockHash(2**63),) * 110),)


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
        events.cleared()
    return listener.next()[0]


@pytest.mark.parametrize("topic", ["", "kv@10.0.0.1@llama"])
def test_who_comes_late_asks_for_what_was_and_hears_what_comes(topic: str) -> None:
    def play(events: KvEvents, listener: Listener) -> None:
        for _ in range(100):
            events.cleared()
        assert listener.replayed(0) == events.since(0)
        assert listener.replayed(70) == events.since(70)
        assert listener.replayed(100) == []
        first = next_heard(events, listener)
        events.changed(A_KILOBYTE)
        expected = events.since(first + 1)
        assert [listener.next() for _ in expected] == expected

    with_listener(play, topic=topic)


def test_what_is_no_request_is_not_answered_and_does_no_harm() -> None:
    def play(events: KvEvents, listener: Listener) -> None:
        events.cleared()
        for request in ([b""], [b"", b""], [b"", b"1"], [b"", b"12345678", b""], [bytes(8)], [b"", bytes(200)]):
            listener.ask(*request)
        assert listener.replayed(0) == events.since(0), "nothing came before it"

    with_listener(play)


def test_a_request_of_megabytes_costs_its_sender_the_connection() -> None:
    def play(events: KvEvents, listener: Listener) -> None:
        events.cleared()
        listener.ask(b"", bytes(2**20))
        with listening(listener_of(listener)) as another:
            assert another.replayed(0) == events.since(0)

    with_listener(play)


def listener_of(listener: Listener) -> dict[str, Any]:
    return {
        "topic": listener.topic.decode(),
        "endpoint": listener.sub.getsockopt_string(zmq.LAST_ENDPOINT),
        "replay_endpoint": listener.dealer.getsockopt_string(zmq.LAST_ENDPOINT),
    }


@pytest.mark.long
def test_a_slow_subscriber_delays_no_other_and_sees_the_gap_and_asks() -> None:
    def play(events: KvEvents, listener: Listener) -> None:
        next_heard(events, listener)
        for _ in range(3 * MAX_BATCHES):
            events.changed(A_KILOBYTE)
        number, _ = listener.next()
        while (following := next_heard(events, listener)) == number + 1:
            number = following
        assert following > number + 1, "it has missed some"
        assert listener.replayed(number + 1) == events.since(0), "and is given what is kept of them"

    with_listener(play, rcvhwm=1)


@pytest.mark.parametrize("offset", [0, 1])
def test_a_port_that_is_taken_is_named(offset: int) -> None:
    async def performance(endpoint: str) -> None:
        async with published(Settings(kv_events=endpoint), fail):
            raise AssertionError("it began")

    with zmq.Context() as context, context.socket(zmq.ROUTER) as other:
        port = other.bind_to_random_port("tcp://127.0.0.1", min_port=20_000, max_port=30_000)
        with pytest.raises(BindFailed, match=f"--kv-events to tcp://127.0.0.1:{port}: Address already in use"):
            asyncio.run(performance(f"tcp://127.0.0.1:{port - offset}"))
