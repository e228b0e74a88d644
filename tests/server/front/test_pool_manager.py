"""The ready callback against a receiver (docs/protocol.md#start-up-and-callback; the notes' B.4)."""

import asyncio
import re
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
import stamina

from tests.loopback import HOST, reserved_port
from tests.loops import on_a_loop
from tests.receiver import Received, Receiver
from worker.errors import CallbackFailed
from worker.server.front import pool_manager as pool

pytestmark = pytest.mark.process

BODY = '{"worker_id":"worker-123","vram_bytes":16000000000,"uri":"http://localhost:9090","note":"größer"}'.encode()
PATH = "/v2/internal/workers/ready"
SHORT_S = 1.0
FAILED = "Pool manager callback failed: "


@pytest.fixture
def has_retried() -> Iterator[asyncio.Event]:
    """It is set when a retry has been scheduled; afterwards stamina's defaults are back."""
    event = asyncio.Event()
    stamina.instrumentation.set_on_retry_hooks([lambda details: event.set()])
    yield event
    stamina.instrumentation.set_on_retry_hooks(None)


def announce(url: str, *, token: str | None = None, budget_s: float = 20.0, attempt_timeout_s: float = 5.0) -> None:
    asyncio.run(pool.announce(url, BODY, token=token, budget_s=budget_s, attempt_timeout_s=attempt_timeout_s))


def played(script: str, **options: float) -> tuple[CallbackFailed | None, list[Received]]:
    """Announces once to a receiver with that script; what was raised, and what the receiver saw."""
    with Receiver(script) as receiver:
        try:
            announce(receiver.url, **options)  # type: ignore[arg-type]  # mypy cannot pair ** with each keyword's type
        except CallbackFailed as error:
            return error, receiver.requests()
        return None, receiver.requests()


@pytest.mark.parametrize(
    ("script", "options", "n_requests", "words"),
    [
        *((status, {}, 1, None) for status in ("200", "202", "204")),
        ("500,503,200", {}, 3, None),
        ("reset,200", {}, 2, None),
        ("hang,200", {"attempt_timeout_s": 0.3}, 2, None),
        ("hang", {"budget_s": 0.5, "attempt_timeout_s": 60.0}, 1, "within 0.5 s$"),
        ("hang", {"budget_s": 1.0, "attempt_timeout_s": 0.2}, None, f"^{FAILED}no answer from .*within 0.2 s$"),
        ("503,500", {"budget_s": 2.0}, None, f"^{FAILED}500 Internal Server Error from http://"),
        ("400,200", {}, 1, f"^{FAILED}400 Bad Request from http://{HOST}:"),
        ("404,200", {}, 1, f"^{FAILED}404 Not Found from http://{HOST}:"),
        ("409,200", {}, 1, f"^{FAILED}409 Conflict from http://{HOST}:"),
        *((f"{status},200", {}, 1, f"{status} .*redirects are not followed") for status in (301, 307, 308)),
    ],
)
def test_5xx_and_silence_are_tried_again_with_the_same_body_until_it_passes_and_other_answers_are_final(
    script: str, options: dict[str, float], n_requests: int | None, words: str | None
) -> None:
    """Several requests are made where no number is given."""
    began_s = time.monotonic()
    error, requests = played(script, **options)
    assert (error is None) if words is None else re.search(words, str(error))
    assert time.monotonic() - began_s < 10
    assert len(requests) >= 2 if n_requests is None else len(requests) == n_requests
    assert {(request.path, request.body) for request in requests} == {(PATH, BODY)}
    assert all(later.at_s > earlier.at_s for earlier, later in pairwise(requests))


def test_the_body_arrives_byte_for_byte_as_json_by_post_at_the_url_as_given() -> None:
    with Receiver() as receiver:
        announce(receiver.url + "?pool=a%20b")
        (request,) = receiver.requests()
    assert (request.method, request.path, request.body) == ("POST", f"{PATH}?pool=a%20b", BODY)
    assert request.headers["content-type"] == "application/json"
    assert request.headers["content-length"] == str(len(BODY))


def test_the_bearer_header_is_sent_exactly_when_there_is_a_token() -> None:
    with Receiver() as receiver:
        announce(receiver.url, token="s3cret")
        announce(receiver.url)
        announce(receiver.url.replace("//", "//user:password@"), token="s3cret")
        sent = [request.headers.get("authorization") for request in receiver.requests()]
    assert sent == ["Bearer s3cret", None, "Bearer s3cret"]


def test_a_refused_connection_fails_with_what_and_where() -> None:
    with reserved_port() as (port, _), pytest.raises(CallbackFailed) as failure:
        announce(url := f"http://{HOST}:{port}/invalid", budget_s=SHORT_S)
    assert str(failure.value) == f"Pool manager callback failed: no answer from {url}: Connection refused"


@on_a_loop
async def test_a_receiver_that_comes_up_late_is_reached(has_retried: asyncio.Event) -> None:
    with reserved_port() as (port, let_go):
        receiver = Receiver(port=port)
        announcing = asyncio.create_task(pool.announce(receiver.url, BODY, budget_s=30.0))
        await has_retried.wait()
        let_go()
        with receiver:
            await announcing
            assert len(receiver.requests()) == 1


@on_a_loop
async def test_a_cancelled_callback_ends_at_once_during_an_attempt_and_during_a_wait(
    has_retried: asyncio.Event,
) -> None:
    with Receiver("hang") as hanging, Receiver("500") as failing:
        for receiver, is_there in (
            (hanging, asyncio.to_thread(hanging.requests, 1)),
            (failing, has_retried.wait()),
        ):
            announcing = asyncio.create_task(pool.announce(receiver.url, BODY))
            await is_there
            announcing.cancel()
            await asyncio.wait([announcing], timeout=5)
            assert announcing.cancelled()


def test_proxy_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with reserved_port() as (port, _):
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://{HOST}:{port}")
            monkeypatch.setenv(name.lower(), f"http://{HOST}:{port}")
        error, requests = played("200", budget_s=SHORT_S)
    assert error is None
    assert len(requests) == 1


@pytest.mark.parametrize("url", ["http://-ü-.x..y/", "http://a\x7fb/"])
def test_an_unusable_url_is_one_clear_line_at_once(url: str) -> None:
    with pytest.raises(CallbackFailed) as failure:
        announce(url)
    assert str(failure.value).startswith("Pool manager callback failed: '")
    assert str(failure.value).isprintable()


def test_a_token_that_no_header_can_carry_is_refused_without_showing_it() -> None:
    with Receiver() as receiver, pytest.raises(CallbackFailed, match="no HTTP header can carry") as failure:
        announce(receiver.url, token="s3cret\n")
    assert "s3cret" not in str(failure.value)


@pytest.mark.parametrize(
    ("url", "is_one"),
    [
        *((f"http://localhost:9999{path}", True) for path in ("", "/callback")),
        *((url, False) for url in ("http://localhost:9998/callback", "http://127.0.0.1:9999/")),
    ],
)
def test_a_url_with_localhost_9999_is_test_mode(url: str, is_one: bool) -> None:
    assert pool.is_test_mode(url) is is_one
