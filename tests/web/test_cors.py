"""Only the configured origins are allowed, in upper and lower case."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.web.cors import Cors

OURS = ("http://localhost:3000", "https://chat.example.org", "tauri://localhost", "app://-", "ext://E1B2", "file://")
OTHERS = (
    *("http://localhost", "http://localhost:3001", "https://localhost:3000", "http://localhost:3000.evil.example"),
    *("https://chat.example.org:80", "https://evil.example/https://chat.example.org", "tauri://", "null", "", "*"),
)

Headers = list[tuple[bytes, bytes]]


def asking(origin: str) -> Headers:
    return [(b"host", b"w"), (b"origin", origin.encode()), (b"access-control-request-method", b"POST")]


@given(st.sampled_from(OURS), st.sampled_from([str, str.upper, str.lower]))
def test_each_of_several_origins_is_allowed_in_its_own_spelling(origin: str, spell: type[str]) -> None:
    cors, sent = Cors(OURS), spell(origin)
    told = dict(cors.headers(asking(sent)))
    assert told[b"access-control-allow-origin"] == sent.encode()
    assert told[b"vary"] == b"origin"
    assert cors.preflight("OPTIONS", asking(sent)) is not None
    assert cors.preflight("POST", asking(sent)) is None


@pytest.mark.parametrize("origin", OTHERS)
def test_no_other_origin_is_allowed(origin: str) -> None:
    cors = Cors(OURS)
    assert cors.headers(asking(origin)) == [(b"vary", b"origin")]
    assert cors.preflight("OPTIONS", asking(origin)) is None


@pytest.mark.parametrize("origin", [*OURS, *OTHERS])
def test_without_origins_no_header_is_sent(origin: str) -> None:
    cors = Cors(())
    assert cors.headers(asking(origin)) == []
    assert cors.preflight("OPTIONS", asking(origin)) is None
