"""Only the configured origins are allowed, in upper and lower case."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from litestar.datastructures import Headers

from worker.web.site import Cors

OURS = ("http://localhost:3000", "https://chat.example.org", "tauri://localhost", "app://-", "ext://E1B2", "file://")
OTHERS = (
    *("http://localhost", "http://localhost:3001", "https://localhost:3000", "http://localhost:3000.evil.example"),
    *("https://chat.example.org:80", "https://evil.example/https://chat.example.org", "tauri://", "null", "", "*"),
)


def asking(origin: str) -> Headers:
    return Headers({"host": "w", "origin": origin, "access-control-request-method": "POST"})


@given(st.sampled_from(OURS), st.sampled_from([str, str.upper, str.lower]))
def test_each_of_several_origins_is_allowed_in_its_own_spelling(origin: str, spell: type[str]) -> None:
    cors, sent = Cors(OURS), spell(origin)
    told = cors.headers(asking(sent))
    assert told["access-control-allow-origin"] == sent
    assert told["vary"] == "origin"
    assert cors.preflight("OPTIONS", asking(sent)) is not None
    assert cors.preflight("POST", asking(sent)) is None


@pytest.mark.parametrize("origin", OTHERS)
def test_no_other_origin_is_allowed(origin: str) -> None:
    cors = Cors(OURS)
    assert cors.headers(asking(origin)) == {"vary": "origin"}
    assert cors.preflight("OPTIONS", asking(origin)) is None


@pytest.mark.parametrize("origin", [*OURS, *OTHERS])
def test_without_origins_no_header_is_sent(origin: str) -> None:
    cors = Cors(())
    assert cors.headers(asking(origin)) == {}
    assert cors.preflight("OPTIONS", asking(origin)) is None
