"""The host and the page of a request, as laws: which names are a worker's, and which pages may ask it.

And the label of its path: labels of metrics are closed sets.
"""

import asyncio
import socket
import string
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from litestar import Litestar, get, post
from litestar.datastructures import Headers
from litestar.params import FromPath

from tests.loops import on_a_loop
from worker.config.settings import Settings
from worker.errors import Forbidden, WorkerError, WrongHost
from worker.observe.metrics import Metrics
from worker.server.web.middleware import CLIENT_LEFT, OTHER, Middleware, Routes, Site

Lines = list[tuple[bytes, bytes]]

ALLOWED = "https://chat.example.org"
OWN_NAMES = ("box.lab.example.com", "gpu.example.org", "*.pool.example.org")
SITE = Site(OWN_NAMES, [ALLOWED, "tauri://localhost"])
OPEN = Site(["*"], [])
BARE = Site([], [])

labels = st.text(string.ascii_letters + string.digits + "-_", min_size=1, max_size=12)
"""Parts of a name."""
ports = st.sampled_from(["", ":80", ":443", ":8080", ":65535", ":"])
dots = st.sampled_from(["", "."])
spellings = st.sampled_from([str, str.upper, str.title])
foreign_names = st.builds(
    lambda labels, end: ".".join([*labels, end]),
    st.lists(labels, min_size=1, max_size=4),
    st.sampled_from(
        ["com", "example", "locals", "xlocal", "internal1", "svc-", "org", "localhost-", "0x7f", "evil.test"]
    ),
)
"""Names that a site may have: none ends in a local domain or in a number."""


def asked(host: str | None = "127.0.0.1:8080", method: str = "POST", path: str = "/shutdown", **headers: str) -> Lines:
    """The headers of a request; `sec_fetch_site` becomes `sec-fetch-site`."""
    first = [] if host is None else [(b"host", host.encode("latin-1"))]
    return first + [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]


def refused(
    headers: Lines, method: str = "POST", path: str = "/shutdown", site: Site = SITE
) -> type[WorkerError] | None:
    error = site.refusal(method, path, Headers(headers))
    return None if error is None else type(error)


# ── the host ─────────────────────────────────────────────────────────────────────────────────────


@given(foreign_names, ports, dots, spellings)
def test_a_name_that_a_site_may_have_is_refused(name: str, port: str, dot: str, spell: Any) -> None:
    """Wherever it is spelled, and whatever a local name in front of it says."""
    for text in (name, f"127.0.0.1.{name}", f"localhost.{name}", f"worker.svc.{name}", f"box.lab.example.com.{name}"):
        assert refused(asked(spell(text + dot) + port)) is WrongHost
        assert refused(asked(spell(text + dot) + port), site=OPEN) is None


@given(st.ip_addresses(), ports)
@example("10.0.0.5", "")
@example("127.1", ":8080")
@example("2130706433", ":8080")
def test_an_address_passes(address: object, port: str) -> None:
    """A page cannot take an address for its name: the browser of its visitor asks that address itself."""
    host = f"[{address}]" if ":" in str(address) else str(address)
    assert refused(asked(host + port), site=BARE) is None


@given(
    st.lists(labels, min_size=1, max_size=3),
    st.sampled_from([".localhost", ".local", ".internal", ".svc", ""]),
    *(ports, dots, spellings),
)
def test_a_name_in_a_local_domain_and_one_without_a_dot_pass(
    first: list[str], domain: str, port: str, dot: str, spell: Any
) -> None:
    name = ".".join(first) + domain if domain else first[0]
    assert refused(asked(spell(name) + dot + port), site=BARE) is None


GIVEN = ("box.lab.example.com", "GPU.example.org:8080", "a.pool.example.org", "a.b.pool.example.org.")
NOT_GIVEN = ("pool.example.org", "xpool.example.org", "example.org", "x.gpu.example.org")


def test_a_given_name_passes_and_a_star_is_every_name_below_and_nothing_else() -> None:
    """A request without a host passes, too: old clients send none, and a browser always does."""
    assert {refused(asked(host)) for host in GIVEN} == {None}
    assert {refused(asked(host), site=BARE) for host in (*GIVEN, *NOT_GIVEN)} == {WrongHost}
    assert {refused(asked(host)) for host in NOT_GIVEN} == {WrongHost}
    assert {refused(asked(host), site=BARE) for host in (None, "", ":8080")} == {None}


ODD = (
    *("user@localhost", "127.0.0.1@evil.example", "evil.example@127.0.0.1", "localhost:80:80", "localhost:http"),
    *("[::1]evil.example", "[::1", "::1", "evil.example/.local", "evil.example\\.local", "evil.example#.local"),
    *("evil.example?.local", "localhost, evil.example", "local host", "[::g]", "localhost:123456", "evil\xe9.example"),
    *("127.0.0.1.", "evil.example:8080.local", "[evil.example]", ".", "..", "?."),
)


@pytest.mark.parametrize("host", [one for one in ODD if one not in ("127.0.0.1.", ".")])
def test_a_text_that_is_no_host_is_refused(host: str) -> None:
    assert refused(asked(host), site=BARE) is WrongHost
    assert refused(asked(host), site=OPEN) is None


@given(st.text(st.characters(max_codepoint=255, exclude_characters="\r\n"), max_size=40))
def test_any_bytes_get_a_verdict(host: str) -> None:
    for origin in ("null", f"http://{host}", host):
        headers = [(b"host", host.encode("latin-1")), (b"origin", origin.encode("latin-1"))]
        assert refused(headers, site=BARE) in {None, WrongHost, Forbidden}


@given(st.permutations(["127.0.0.1", "localhost", "evil.example"]))
def test_of_several_hosts_each_must_be_the_worker(hosts: Sequence[str]) -> None:
    headers = [(b"host", host.encode()) for host in hosts]
    assert refused(headers) is WrongHost
    assert refused([line for line in headers if b"evil" not in line[1]]) is None


def test_the_host_is_judged_before_the_page() -> None:
    assert refused(asked("evil.example", origin="http://evil.example", sec_fetch_site="cross-site")) is WrongHost


class Resolver(asyncio.SelectorEventLoop):
    """A loop that knows one name."""

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        if host != "box":
            raise socket.gaierror(socket.EAI_NONAME, "nobody")
        assert options == {"flags": socket.AI_CANONNAME}
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "Box.Dept.Example.net.", ("127.0.1.1", 0))]


def test_the_full_name_of_the_machine_passes_once_it_is_looked_up() -> None:
    site = Site(["box"], [])
    with asyncio.Runner(loop_factory=Resolver) as runner:
        runner.run(site.add_full_name("unknown"))
        assert refused(asked("box.dept.example.net"), site=site) is WrongHost
        runner.run(site.add_full_name("box"))
    assert refused(asked("box.dept.example.net:8080"), site=site) is None


# ── the page ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("site", "method"), list(product(["same-origin", "none"], ["GET", "HEAD", "POST", "OPTIONS", "DELETE"]))
)
@pytest.mark.parametrize("origin", [None, "null", "http://evil.example"])
def test_a_browser_s_word_that_the_page_is_the_worker_s_own_passes(site: str, method: str, origin: str | None) -> None:
    """An Origin is then not compared: a proxy may have changed Host."""
    told = {} if origin is None else {"origin": origin}
    assert refused(asked(sec_fetch_site=site, **told), method) is None


MODES = (None, "cors", "no-cors", "same-origin", "navigate", "websocket", "nested-navigate")
DESTINATIONS = (None, "document", "iframe", "image", "script", "empty", "object", "embed", "frame", "style")


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "OPTIONS", "get"])
def test_from_another_site_only_a_link_passes(site: str, method: str) -> None:
    for mode, destination in product(MODES, DESTINATIONS):
        way = {"sec_fetch_mode": mode, "sec_fetch_dest": destination}
        headers = asked(sec_fetch_site=site, **{name: value for name, value in way.items() if value is not None})
        is_link = method in ("GET", "HEAD") and (mode, destination) == ("navigate", "document")
        assert refused(headers, method) is (None if is_link else Forbidden), (mode, destination)


@pytest.mark.parametrize("site", ["cross-site", "same-site", "same-origin", None])
@pytest.mark.parametrize("origin", [ALLOWED, ALLOWED.upper(), "tauri://localhost"])
def test_an_allowed_origin_passes_from_anywhere(site: str | None, origin: str) -> None:
    told = {} if site is None else {"sec_fetch_site": site}
    assert refused(asked(origin=origin, **told)) is None
    assert refused(asked("evil.example", origin=origin, **told)) is WrongHost
    assert refused(asked(origin=origin, **told), site=BARE) is (None if site == "same-origin" else Forbidden)


hosts = st.one_of(
    labels,
    st.ip_addresses().map(lambda one: f"[{one}]" if one.version == 6 else str(one)),
    st.builds("{}.local".format, labels),
)
schemes = st.sampled_from(["http", "https"])


@given(schemes, hosts, st.integers(1, 65535), spellings)
def test_where_the_browser_says_nothing_the_origin_of_the_host_and_port_passes(
    scheme: str, host: str, port: int, spell: Any
) -> None:
    own = {"http": 80, "https": 443}[scheme]
    assert refused(asked(f"{host}:{port}", origin=f"{scheme}://{host}:{port}".lower()), site=BARE) is None
    for asked_host, origin in product(
        (spell(host), f"{host}:{own}"), (f"{scheme}://{host}", f"{scheme}://{host}:{own}")
    ):
        assert refused(asked(asked_host, origin=origin), site=BARE) is None


@given(schemes, hosts, hosts, st.integers(1, 65535), st.integers(1, 65535))
def test_where_the_browser_says_nothing_another_origin_is_refused(
    scheme: str, host: str, other: str, port: int, other_port: int
) -> None:
    assume((host.lower(), port) != (other.lower(), other_port))
    assert refused(asked(f"{host}:{port}", origin=f"{scheme}://{other}:{other_port}"), site=BARE) is Forbidden


@pytest.mark.parametrize(
    "origin",
    [
        *("null", "", "*", "http://", "http://127.0.0.1", "http://127.0.0.1:8081", "https://127.0.0.1", "http://evil"),
        *("ftp://127.0.0.1:8080", "app://127.0.0.1:8080", "http:127.0.0.1:8080", "127.0.0.1:8080", "file://"),
        *("http://127.0.0.1:8080@evil.example", "http://evil.example@127.0.0.1:8080", "http://127.0.0.1:8080/x"),
        *("http://127.0.0.1:8080 http://evil.example", "http://127.0.0.1:8080.evil.example"),
    ],
)
def test_an_origin_that_is_not_the_worker_s_is_refused(origin: str) -> None:
    assert refused(asked(origin=origin), site=BARE) is Forbidden
    assert refused(asked(origin=origin), "GET", site=OPEN) is Forbidden


def test_an_unknown_word_of_the_browser_is_no_word() -> None:
    """A value outside the list is ignored (W3C Fetch Metadata, 2)."""
    assert refused(asked(sec_fetch_site="same-planet")) is None
    assert refused(asked(sec_fetch_site="same-planet", origin="null")) is Forbidden


def test_the_worst_of_several_words_counts() -> None:
    for sites in (["same-origin", "cross-site"], ["cross-site", "none"]):
        headers = asked() + [(b"sec-fetch-site", site.encode()) for site in sites]
        assert refused(headers) is Forbidden
    link = asked(sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document")
    assert refused([*link, (b"sec-fetch-mode", b"cors")], "GET") is Forbidden


@pytest.mark.parametrize("hosts", [[], ["127.0.0.1:8080", "localhost:8080"]])
def test_an_origin_needs_one_host_to_be_compared_with(hosts: list[str]) -> None:
    headers = [(b"host", host.encode()) for host in hosts] + [(b"origin", b"http://127.0.0.1:8080")]
    assert refused(headers, site=BARE) is Forbidden


def test_a_request_without_a_word_or_an_origin_passes() -> None:
    """curl's, a pool manager's, a router's."""
    headers = asked(x_forwarded_host="evil.example", x_forwarded_proto="https", referer="http://evil.example")
    assert refused(headers) is None


@pytest.mark.parametrize("forwarded", ["x_forwarded_host", "forwarded", "x_forwarded_server", "x_original_host"])
def test_a_forwarded_host_is_not_believed(forwarded: str) -> None:
    value = "host=evil.example" if forwarded == "forwarded" else "evil.example"
    assert refused(asked(**{forwarded: value}, origin="http://evil.example")) is Forbidden
    assert refused(asked("evil.example", **{forwarded: "127.0.0.1"})) is WrongHost


@pytest.mark.parametrize(
    ("headers", "named", "flag"),
    [
        (asked("evil.example" + "x" * 1000), "evil.examplexx", "--allowed-host"),
        (asked(origin="http://evil.example"), "'http://evil.example'", "--cors-origin"),
        (asked(sec_fetch_site="cross-site"), "not named", "--cors-origin"),
    ],
)
def test_a_refusal_names_the_text_and_the_flag_and_the_log_does_not_quote_it(
    headers: Lines, named: str, flag: str
) -> None:
    error = SITE.refusal("POST", "/shutdown", Headers(headers))
    assert error is not None
    assert named in str(error)
    assert flag in str(error)
    assert len(str(error)) < 300
    assert "evil" not in error.reason


# ── the headers for allowed origins ──────────────────────────────────────────────────────────────


OURS = ("http://localhost:3000", "https://chat.example.org", "tauri://localhost", "app://-", "ext://E1B2", "file://")
OTHERS = (
    *("http://localhost", "http://localhost:3001", "https://localhost:3000", "http://localhost:3000.evil.example"),
    *("https://chat.example.org:80", "https://evil.example/https://chat.example.org", "tauri://", "null", "", "*"),
)


def asking(origin: str) -> Headers:
    return Headers({"origin": origin, "access-control-request-method": "POST"})


@given(st.sampled_from(OURS), st.sampled_from([str, str.upper, str.lower]))
def test_each_of_several_origins_is_allowed_in_its_own_spelling(origin: str, spell: type[str]) -> None:
    cors, sent = Site([], OURS), spell(origin)
    told = cors.headers(asking(sent))
    assert told["access-control-allow-origin"] == sent
    assert told["vary"] == "origin"
    assert cors.preflight("OPTIONS", asking(sent)) is not None
    assert cors.preflight("POST", asking(sent)) is None


@pytest.mark.parametrize(
    ("cors", "origin", "told"),
    [
        *((Site([], OURS), origin, {"vary": "origin"}) for origin in OTHERS),
        *((BARE, origin, {}) for origin in (*OURS, *OTHERS)),
    ],
)
def test_no_other_origin_is_allowed_and_none_without_the_setting(cors: Site, origin: str, told: dict[str, str]) -> None:
    assert cors.headers(asking(origin)) == told
    assert cors.preflight("OPTIONS", asking(origin)) is None


# ── labels ───────────────────────────────────────────────────────────────────────────────────────


@get(["/health", "/v1/health"], sync_to_thread=False)
def health() -> str:
    return ""


@post("/cancel/{job_id:str}", status_code=202, sync_to_thread=False)
def cancel(job_id: FromPath[str]) -> None: ...


APP = Litestar([health, cancel], openapi_config=None)
ROUTES = Routes(APP)
PATHS = {"/health": "/health", "/health/": "/health", "/v1/health": "/v1/health", "/cancel/7": "/cancel/{job_id}"}


def test_a_path_is_labelled_with_its_route() -> None:
    assert {path: ROUTES.label(path) for path in PATHS} == PATHS


def test_offered_routes_have_their_success_status_and_head_for_get() -> None:
    assert set(ROUTES.offered()) == {
        ("/health", "GET", 200),
        ("/health", "HEAD", 200),
        ("/v1/health", "GET", 200),
        ("/v1/health", "HEAD", 200),
        ("/cancel/{job_id}", "POST", 202),
    }


@given(st.text(max_size=30) | st.lists(st.sampled_from(["/", "health", "cancel", "7", "\n", "{job_id}"])).map("".join))
def test_no_path_makes_a_new_label(path: str) -> None:
    assert ROUTES.label("/" + path) in {*PATHS.values(), OTHER}


# ── an exchange without an answer ────────────────────────────────────────────────────────────────


@on_a_loop
async def test_a_client_that_leaves_before_its_answer_is_counted_with_499() -> None:
    has_begun = asyncio.Event()

    @get("/slow/{name:str}")
    async def slow(name: FromPath[str]) -> None:
        has_begun.set()
        await asyncio.Event().wait()

    async def left(*_: object) -> Any:
        return {"type": "http.disconnect"}

    metrics = Metrics("w-1")
    app = Middleware(Litestar([slow], openapi_config=None), Settings(model="m.gguf"), metrics)
    scope: Any = {"type": "http", "method": "GET", "path": "/slow/7", "state": {}, "headers": [], "query_string": b""}
    exchange = asyncio.create_task(app(scope, left, left))
    await has_begun.wait()
    exchange.cancel()
    with suppress(asyncio.CancelledError):
        await exchange
    labels = f'method="GET",route="/slow/{{name}}",status="{CLIENT_LEFT}",worker_id="w-1"'
    assert f"worker_http_requests_total{{{labels}}} 1.0" in metrics.render(None)[0].decode()
