"""Requests over real sockets: every one is answered or says why not, and is sent when it is due."""

import asyncio
import threading
from dataclasses import replace

import pytest

from tests.tools.bench.stand_in import DIALECTS, StandIn, stand_in
from tools.bench.answers import Answer, Ask
from tools.bench.dialects import Dialect
from tools.bench.exchange import Address, NotReached, ask_once, connect
from tools.bench.load import play
from worker.errors import UsageError

ASK = Ask(prompt="one two", n_tokens=5)
both = pytest.mark.parametrize("dialect", DIALECTS, ids=["ours", "llama-server"])


def played(server: StandIn, dialect: Dialect, *asks: Ask) -> list[Answer]:
    return asyncio.run(play(server.as_server(dialect), asks))


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


@both
@pytest.mark.parametrize("piece_bytes", [None, 1, 7])
def test_a_whole_answer_has_every_token_and_its_time(dialect: Dialect, piece_bytes: int | None) -> None:
    with stand_in(piece_bytes=piece_bytes) as server:
        (answer,) = played(server, dialect, ASK)
    assert (answer.error, answer.n_tokens, len(answer.arrivals_s)) == ("", 5, 5)
    times = [answer.sent_s, *answer.arrivals_s, answer.ended_s]
    assert times == sorted(times)


@both
@pytest.mark.parametrize(
    ("manner", "said"),
    [
        ({"cut_after": 3}, "cut after 3 tokens: the connection was closed"),
        ({"cut_after": 0}, "cut after 0 tokens: the connection was closed"),
        ({"status": 503}, "503 "),
        ({"status": 418}, "418 "),
        ({"is_no_http": True}, "no answer: no HTTP: "),
    ],
)
def test_what_is_no_answer_says_why(dialect: Dialect, manner: dict[str, object], said: str) -> None:
    with stand_in(**manner) as server:
        (answer,) = played(server, dialect, ASK)
    assert said in answer.error
    assert answer.n_tokens == 0


@both
def test_one_bad_answer_does_not_touch_the_others(dialect: Dialect) -> None:
    hold = threading.Event()
    with stand_in(n_places=3, hold=hold) as server:
        release = threading.Thread(target=_release_when_asked, args=(server, 8, hold))
        release.start()
        answers = played(server, dialect, *[ASK] * 8)
        release.join()
    assert sum(answer.is_refused for answer in answers) == 5
    assert sum(not answer.error for answer in answers) == 3


def _release_when_asked(server: StandIn, n_jobs: int, hold: threading.Event) -> None:
    waiting = threading.Event()
    while len(server.heard.jobs) < n_jobs:
        waiting.wait(0.005)
    hold.set()


@pytest.mark.long
@both
def test_silence_ends_a_stream(dialect: Dialect) -> None:
    hold = threading.Event()
    with stand_in(hold=hold) as server:
        (answer,) = asyncio.run(play(replace(server.as_server(dialect), silence_s=0.3), [ASK]))
        hold.set()
    assert "nothing for 0.3 s" in answer.error


def test_an_address_without_a_server_is_one_line() -> None:
    with stand_in() as server:
        gone = server.address
    with pytest.raises(NotReached, match=rf"no server answers at http://127\.0\.0\.1:{gone.port}: "):
        asyncio.run(ask_once(gone, "GET", "/health"))


# ── when they are sent ───────────────────────────────────────────────────────────────────────────


def test_a_phase_begins_when_the_one_before_has_ended() -> None:
    asks = [Ask(prompt=f"{number}", n_tokens=3, phase=number // 2) for number in range(6)]
    with stand_in() as server:
        answers = played(server, DIALECTS[0], *asks)
        assert server.heard.most_at_once <= 2
    for before, after in zip(answers[:-2], answers[2:], strict=True):
        if asks[answers.index(before)].phase < asks[answers.index(after)].phase:
            assert before.ended_s <= after.sent_s


def test_answers_come_in_the_order_of_the_requests() -> None:
    asks = [Ask(prompt=f"{number}", n_tokens=9 - number) for number in range(8)]
    with stand_in() as server:
        assert [answer.n_tokens for answer in played(server, DIALECTS[0], *asks)] == list(range(9, 1, -1))


def test_requests_keep_their_distance() -> None:
    asks = [Ask(prompt="a", n_tokens=2, at_s=at_s) for at_s in (0.0, 0.05, 0.12)]
    with stand_in() as server:
        first, second, third = played(server, DIALECTS[0], *asks)
    assert second.sent_s - first.sent_s >= 0.04
    assert third.sent_s - first.sent_s >= 0.11


def test_a_late_request_waits_until_the_others_are_going() -> None:
    streams = [Ask(prompt="a", n_tokens=60) for _ in range(3)]
    with stand_in() as server:
        *early, late = played(server, DIALECTS[0], *streams, Ask(prompt="late", n_tokens=2, is_late=True))
    for stream in early:
        assert sum(at_s <= late.sent_s for at_s in stream.arrivals_s) >= 20


def test_a_server_that_closes_idle_connections_closes_none_that_waits_for_its_time() -> None:
    asks = [Ask(prompt="a", n_tokens=2), Ask(prompt="b", n_tokens=2, at_s=0.5)]
    with stand_in(idle_s=0.1) as server:
        assert [answer.error for answer in played(server, DIALECTS[0], *asks)] == ["", ""]


def test_a_late_request_does_not_wait_for_one_that_failed() -> None:
    with stand_in(cut_after=2) as server:
        *_, late = played(server, DIALECTS[0], ASK, ASK, Ask(prompt="late", n_tokens=2, is_late=True))
    assert late.error == ""


# ── one connection ───────────────────────────────────────────────────────────────────────────────


def test_a_connection_carries_one_exchange_after_another() -> None:
    async def twice(address: Address) -> list[tuple[int, bytes]]:
        connection = await connect(address)
        found = [await connection.ask("GET", "/props") for _ in range(2)]
        connection.close()
        return [(one.status, one.body) for one in found]

    with stand_in() as server:
        first, second = asyncio.run(twice(server.address))
    assert first == second == (200, b'{"build_info": "b1-stand-in"}')


def test_a_connection_that_was_closed_answers_nothing() -> None:
    async def after_the_end(address: Address) -> tuple[int, str]:
        connection = await connect(address)
        await connection.ask("POST", "/execute", DIALECTS[0].body(ASK))
        again = await connection.ask("GET", "/health")
        connection.close()
        return again.status, again.broken

    with stand_in(cut_after=1) as server:
        status, broken = asyncio.run(after_the_end(server.address))
    assert (status, broken) == (0, "the connection was closed before")


def test_a_token_is_sent_as_a_bearer() -> None:
    with stand_in() as server:
        address = Address(server.address.host, server.address.port, token="s3cret")
        asyncio.run(ask_once(address, "POST", "/execute", DIALECTS[0].body(ASK)))
        assert server.heard.headers[0]["Authorization"] == "Bearer s3cret"


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:80", "https://a:1", "http://", "http://a:1/path", "ftp://a:1", "http://a:x"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="http://HOST:PORT"):
        Address.of(url)


def test_an_address_is_a_host_and_a_port() -> None:
    assert Address.of("http://localhost:8080/") == Address("localhost", 8080)
    assert Address.of("http://localhost") == Address("localhost", 80)
    assert str(Address.of("http://localhost:8080")) == "http://localhost:8080"
