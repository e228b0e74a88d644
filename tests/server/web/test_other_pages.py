"""A browser with a page of another site: all its ways to a worker without a token, with and without nginx between.

Each attack is tried on two workers: `safe` as it is, and `exposed`, which judges neither host nor page. There each
succeeds, or the test would show nothing.
"""

import re
import socket
import socketserver
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from itertools import count
from pathlib import Path

import psutil
import pytest

from tests.chromium import Browser, Tab, chromium
from tests.nginx_process import nginx
from tests.worker_process import PATIENCE_S, WorkerProcess, serving_toy, toy_worker

pytestmark = pytest.mark.process

EVIL, LAN, PUBLIC = "evil.example", "gpu.local", "llm.example.org"
"""The attacker's name; a worker's in its network, to which browsers send no Sec-Fetch-Site; and one behind TLS."""


def own_addresses() -> list[str]:
    """The addresses of this machine that others could reach, and one of the loopback beside the usual one."""
    found = [one.address for named in psutil.net_if_addrs().values() for one in named if one.family == socket.AF_INET]
    return ["127.0.0.2", *(one for one in found if not ip_address(one).is_loopback)]


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """A browser for which all names of this module and the machine's own are this machine."""
    here = [EVIL, LAN, PUBLIC, "*.example.net", "localhost", socket.gethostname()]
    rules = [f"MAP {name} 127.0.0.1" for name in here]
    rules += [
        "MAP * ~NOTFOUND",
        "EXCLUDE 127.0.0.1",
        "EXCLUDE ::1",
        *(f"EXCLUDE {address}" for address in own_addresses()),
    ]
    flags = (f"--host-resolver-rules={','.join(rules)}", "--ignore-certificate-errors")
    with Browser(chromium(), profile, *flags) as browser:
        yield browser


def check_page_works(tab: Tab) -> None:
    """The worker's page shows its state, and a question is answered."""
    tab.until("document.querySelector('#state')?.textContent === 'ready'")
    tab.fill("#prompt", "Hello")
    tab.press("Enter")
    tab.until("document.querySelector('.turn.assistant .usage')?.innerText.includes('tokens')")


@contextmanager
def serving_pages() -> Iterator[int]:
    """The port of a site whose every page is empty. It has no icon."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<!doctype html><link rel=icon href=data:,><title>evil</title><body><p>Hello</p></body>"
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server, _serving(server):
        yield server.server_port


class Rebound(socketserver.ThreadingTCPServer):
    """An address behind which the machine changes, as it does when a name comes to have another address."""

    daemon_threads = True

    def __init__(self, target: int) -> None:
        super().__init__(("127.0.0.1", 0), _Forwarding)
        self.target = target
        """The port to which the next connections go."""


class _Forwarding(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Rebound)
        with socket.create_connection(("127.0.0.1", self.server.target), PATIENCE_S) as target:
            back = threading.Thread(target=_copied, args=(target, self.connection))
            back.start()
            _copied(self.connection, target)
            back.join(PATIENCE_S)


def _copied(source: socket.socket, target: socket.socket) -> None:
    """Copy to the end, which is then the other's end, too."""
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # one of the two has left


@contextmanager
def rebinding(target: int) -> Iterator[Rebound]:
    with Rebound(target) as server, _serving(server):
        yield server


@contextmanager
def _serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join(PATIENCE_S)


# ── ways to send ─────────────────────────────────────────────────────────────────────────────────


safe = serving_toy("--access-log", "--host", "::")
exposed = serving_toy("--access-log", "--host", "::", is_open=True)

FORM = """(() => {{
    const form = document.body.appendChild(Object.assign(document.createElement('form'), {{
        method: 'POST', action: url, enctype: '{kind}', target: '{target}' || url}}));
    const field = form.appendChild(document.createElement('input'));
    field.name = '{{"a":"'; field.value = '"}}';
    if (!'{target}') document.body.appendChild(Object.assign(document.createElement('iframe'), {{name: url}}));
    setTimeout(() => form.submit());
}})()"""
KINDS = {"urlencoded": "application/x-www-form-urlencoded", "multipart": "multipart/form-data", "text": "text/plain"}
SANDBOX = (
    "const frame = document.createElement('iframe'); frame.sandbox = 'allow-scripts allow-forms';"
    " frame.srcdoc = '<body><script>' + script + '<' + '/script>'; document.body.appendChild(frame);"
)


def sandboxed(script: str) -> str:
    """The script in a frame whose origin is `null`; it has URL for the address."""
    return f"(() => {{ const script = {script!r}.replace('URL', JSON.stringify(url)); {SANDBOX} }})()"


WRITES = {
    **{f"a form, {name}, {target}": FORM.format(kind=kind, target=target)
       for name, kind in KINDS.items() for target in ("_self", "_blank", "")},
    **{f"a request, {mode}, {name}": f"void fetch(url, {{method: 'POST', mode: '{mode}', {rest}}}).catch(() => 0)"
       for mode in ("cors", "no-cors") for name, rest in {
           "empty": "",
           "text": "body: 'x'",
           "urlencoded": "body: new URLSearchParams({a: 1})",
           "multipart": "body: new FormData()",
           "kept alive": "body: 'x', keepalive: true",
           "with cookies": "credentials: 'include'",
           "without referrer": "referrerPolicy: 'no-referrer'",
       }.items()},
    "the old request": "(() => { const r = new XMLHttpRequest(); r.open('POST', url); r.send('x') })()",
    "a beacon": "void navigator.sendBeacon(url, 'x')",
    "a beacon with a form": "void navigator.sendBeacon(url, new FormData())",
    "a beacon with parameters": "void navigator.sendBeacon(url, new URLSearchParams({a: 1}))",
    "a ping": "(() => { const a = document.body.appendChild(document.createElement('a')); a.href = '#'; a.ping = url;"
    " a.click() })()",
    "a form in a sandbox": sandboxed(
        "const f = document.body.appendChild(document.createElement('form'));"
        " f.method = 'POST'; f.action = URL; f.submit()"
    ),
    "a request from a sandbox": sandboxed("fetch(URL, {method: 'POST', mode: 'no-cors'})"),
}  # fmt: skip
"""Ways to send a POST without asking first, as JavaScript with the address `url`."""

ELEMENT = "void document.head.appendChild(Object.assign(document.createElement('{tag}'), {{{attributes}}}))"
READS = {
    "an image": "void (new Image().src = url)",
    "a script": ELEMENT.format(tag="script", attributes="src: url"),
    "a style sheet": ELEMENT.format(tag="link", attributes="rel: 'stylesheet', href: url"),
    "a frame": "void (document.body.appendChild(document.createElement('iframe')).src = url)",
    "an object": "void (document.body.appendChild(document.createElement('object')).data = url)",
    "an embedded page": "void (document.body.appendChild(document.createElement('embed')).src = url)",
    "a video": "void (document.body.appendChild(document.createElement('video')).src = url)",
    "a picture of a style": "void (document.body.style.backgroundImage = `url(${url})`)",
    "a form in a frame": FORM.format(kind=KINDS["text"], target="").replace("'POST'", "'GET'"),
    "a request without answer": "void fetch(url, {mode: 'no-cors'})",
}
"""Ways to send a GET whose answer the page does not get."""
ASKS = {
    "a request": "void fetch(url).catch(() => 0)",
    "the old request": "(() => { const r = new XMLHttpRequest(); r.open('GET', url); r.send() })()",
    "events": "void new EventSource(url)",
    "a module": ELEMENT.format(tag="script", attributes="type: 'module', src: url"),
    "a font": "void new FontFace('f', `url(${url})`).load().catch(() => 0)",
    "a web socket": "void new WebSocket(url.replace('http', 'ws'))",
}
"""Ways to send a GET whose answer the page wants, which name the page's origin."""
LINKS = {
    "a link": "(() => { const a = document.body.appendChild(document.createElement('a')); a.href = url; a.click() })()",
    "an address": "void (location.href = url)",
    "a new window": "void window.open(url)",
    "a form that asks": FORM.format(kind=KINDS["text"], target="_self").replace("'POST'", "'GET'"),
}


@dataclass(frozen=True)
class Workers:
    safe: WorkerProcess
    exposed: WorkerProcess


@pytest.fixture(scope="module")
def workers(safe: WorkerProcess, exposed: WorkerProcess) -> Workers:
    return Workers(safe, exposed)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The attacker's."""
    with serving_pages() as port:
        yield port


def run(tab: Tab, script: str, url: str) -> None:
    """Run the attack as if a person had clicked: browsers let no page open a window by itself."""
    told = tab.call("Runtime.evaluate", expression=f"(url => {{ {script} }})({url!r})", userGesture=True)
    assert "exceptionDetails" not in told, told


def attack(
    browser: Browser, page: str, ways: Mapping[str, str], worker: WorkerProcess, target: str
) -> dict[str, tuple[int, ...]]:
    """The worker's statuses for each way in which the page goes for a target. Each way has a target of its own; one
    that leaves the page gets a page of its own."""
    names = {way: f"{next(_numbers)}-{re.sub('[^a-z]+', '-', way)}" for way in ways}
    with ExitStack() as tabs:
        common = tabs.enter_context(browser.tab())
        common.open(page)
        for way, script in ways.items():
            tab = common
            if "_self" in way or way in LINKS:
                tab = tabs.enter_context(browser.tab())
                tab.open(page)
            run(tab, script, target + names[way])
        path = "/" + target.split("/", 3)[3]
        while any(not statuses(worker, path + name) for name in names.values()):
            worker.wait_for("access")
    return {way: statuses(worker, path + name) for way, name in names.items()}


_numbers = count()


def statuses(worker: WorkerProcess, path: str) -> tuple[int, ...]:
    return tuple({line["status"] for line in worker.log if line["event"] == "access" and line["path"] == path})


def all_are(status: int, ways: Iterable[str]) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys(ways, (status,))


PAGES = {"another site": f"http://{EVIL}", "another port": "http://127.0.0.1"}
HOSTS = ("127.0.0.1", LAN)


# ── what a page sends ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("page", PAGES)
def test_no_page_of_another_origin_commands_a_worker(
    browser: Browser, port: int, workers: Workers, page: str, host: str
) -> None:
    for worker, status in ((workers.exposed, 202), (workers.safe, 403)):
        url = f"http://{host}:{worker.port}/cancel/"
        assert attack(browser, f"{PAGES[page]}:{port}/", WRITES, worker, url) == all_are(status, WRITES)


@pytest.mark.parametrize("page", PAGES)
def test_no_page_of_another_origin_makes_a_worker_answer(
    browser: Browser, port: int, workers: Workers, page: str
) -> None:
    """If it is reached, the route of models does not know the name."""
    for worker, status in ((workers.exposed, 404), (workers.safe, 403)):
        url = f"http://127.0.0.1:{worker.port}/v1/models/"
        ways = READS | ASKS
        assert attack(browser, f"{PAGES[page]}:{port}/", ways, worker, url) == all_are(status, ways)


def test_by_a_name_of_the_network_only_what_names_no_origin_is_answered_and_not_to_the_page(
    browser: Browser, port: int, workers: Workers
) -> None:
    """There a browser says neither which site asks nor, for a mere GET, which origin. Such a GET changes nothing."""
    url = f"http://{LAN}:{workers.safe.port}/v1/models/"
    found = attack(browser, f"http://{EVIL}:{port}/", READS | ASKS, workers.safe, url)
    assert found == all_are(404, READS) | all_are(403, ASKS)


@pytest.mark.parametrize("host", HOSTS)
def test_a_link_of_another_site_is_followed(browser: Browser, port: int, workers: Workers, host: str) -> None:
    url = f"http://{host}:{workers.safe.port}/v1/models/"
    assert attack(browser, f"http://{EVIL}:{port}/", LINKS, workers.safe, url) == all_are(404, LINKS)


BLOCKED = {
    "same-origin": "await fetch(url, {method: 'POST', mode: 'same-origin'})",
    "navigate": "await fetch(url, {method: 'POST', mode: 'navigate'})",
    "JSON": "await fetch(url, {method: 'POST', headers: {'content-type': 'application/json'}, body: '{}'})",
    "a header": "await fetch(url, {method: 'POST', headers: {'sec-fetch-site': 'none', 'x-a': 'b'}})",
    "another method": "await fetch(url, {method: 'DELETE'})",
}
"""Requests that a browser does not send, or asks about first."""


@pytest.mark.parametrize("way", BLOCKED)
def test_what_a_browser_asks_about_first_it_never_sends(
    browser: Browser, port: int, workers: Workers, way: str
) -> None:
    tried = f"(async () => {{ try {{ {BLOCKED[way]} }} catch (e) {{ return e.name }} }})()"
    for worker in (workers.exposed, workers.safe):
        path = f"/cancel/{next(_numbers)}-asked"
        with browser.tab() as tab:
            tab.open(f"http://{EVIL}:{port}/")
            assert tab.evaluate(tried, url=f"http://127.0.0.1:{worker.port}{path}") == "TypeError"
        worker.post(f"{path}-marker")
        worker.wait_for("access", path=f"{path}-marker")
        assert {line["method"] for line in worker.log if line.get("path") == path} <= {"OPTIONS"}


@pytest.mark.parametrize("path", ["/shutdown", "/v1/shutdown", "/v1/admin/shutdown"])
def test_a_form_of_another_site_ends_no_worker(
    browser: Browser, port: int, tmp_path: Path, workers: Workers, path: str
) -> None:
    form, safe = WRITES["a form, text, _self"], workers.safe
    with toy_worker(tmp_path, is_open=True) as worker, browser.tab() as tab:
        worker.ready()
        tab.open(f"http://{EVIL}:{port}/")
        run(tab, form, f"{worker.url}{path}")
        assert worker.exit_code() == 0
    with browser.tab() as tab:
        tab.open(f"http://{EVIL}:{port}/")
        run(tab, form, f"http://127.0.0.1:{safe.port}{path}")
        assert safe.wait_for("access", path=path)["status"] == 403
    assert safe.health()["state"] == "ready"


# ── a name that comes to mean this machine ───────────────────────────────────────────────────────

QUESTION = (
    "fetch('/v1/chat/completions', {method: 'POST', headers: {'content-type': 'application/json'},"
    " body: JSON.stringify(body)})"
)
STOLEN = {
    "the models": "fetch('/v1/models')",
    "the metrics": "fetch('/metrics')",
    "the state": "fetch('/health')",
    "an answer": QUESTION,
    "the end": "fetch('/shutdown', {method: 'POST'})",
}
BODY = {"model": "any", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
SECRETS = {
    "the models": '"object":"list"',
    "the metrics": "worker_requests_total",
    "the state": '"healthy"',
    "an answer": '"choices"',
    "the end": "shutting_down",
}


def test_a_page_whose_name_comes_to_mean_this_machine_reads_nothing(
    browser: Browser, port: int, tmp_path: Path
) -> None:
    """The browser then takes the page and the worker for one site. `*` turns off what protects from it."""
    for flags, statuses in ((("--allowed-host", "*"), {200, 202}), ((), {421})):
        with toy_worker(tmp_path, *flags) as worker, rebinding(port) as name, browser.tab() as tab:
            worker.ready()
            tab.open(f"http://rebound.example.net:{name.server_address[1]}/")
            assert tab.text("p") == "Hello"
            name.target = worker.port
            for what, request in STOLEN.items():
                script = f"(async () => {{ const r = await {request}; return [r.status, await r.text()] }})()"
                status, text = tab.evaluate(script, body=BODY)
                assert status in statuses, what
                assert (SECRETS[what] in text) == bool(flags), what


# ── the worker's own page ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", LAN, socket.gethostname(), *own_addresses()])
def test_the_page_works_under_every_name_of_the_machine(browser: Browser, safe: WorkerProcess, host: str) -> None:
    with browser.tab() as tab:
        tab.open(f"http://{host}:{safe.port}/")
        check_page_works(tab)


def test_the_page_works_by_a_name_that_is_allowed(browser: Browser, tmp_path: Path) -> None:
    with toy_worker(tmp_path, "--allowed-host", "*.example.net") as worker, browser.tab() as tab:
        tab.open(f"http://gpu-7.example.net:{worker.ready().port}/")
        check_page_works(tab)


def test_a_link_from_another_site_leads_to_a_page_that_works(browser: Browser, port: int, safe: WorkerProcess) -> None:
    with browser.tab() as tab:
        tab.open(f"http://{EVIL}:{port}/")
        run(tab, LINKS["a link"], f"http://127.0.0.1:{safe.port}/")
        safe.wait_for("access", path="/page/chat.js")
        check_page_works(tab)


# ── behind nginx, with its defaults and as docs/security.md says ────────────────────────────────

DEFAULT = (
    "server {{ listen {listen}; server_name {name}; location / {{ proxy_pass http://127.0.0.1:{port}; {more} }} }}"
)
"""nginx sends the worker the host of `proxy_pass`, whatever the client asked for, unless `more` changes that."""
NO_OTHER = "server { listen TLS ssl default_server; listen PLAIN default_server; return 421; }"
"""The block for all hosts that no other block names."""

named = serving_toy("--allowed-host", PUBLIC)


def served(worker: WorkerProcess, more: str = "", name: str = PUBLIC) -> str:
    """Blocks that serve the worker over TLS and over HTTP."""
    return "".join(
        DEFAULT.format(listen=listen, name=name, port=worker.port, more=more) for listen in ("TLS ssl", "PLAIN")
    )


def asked(browser: Browser, page: str, request: str) -> int:
    """The status of a request that a page sends to its own site."""
    with browser.tab() as tab:
        tab.open(page)
        status: int = tab.evaluate(f"(async () => (await {request}).status)()")
    return status


CANCEL = "fetch('/cancel/7', {method: 'POST'})"


@pytest.mark.parametrize("more", ["", "proxy_set_header Host $host;", "proxy_set_header Host $http_host;"])
def test_the_page_works_behind_tls(browser: Browser, named: WorkerProcess, tmp_path: Path, more: str) -> None:
    """Over TLS browsers say which site asks, so that nginx may write any Host."""
    with nginx(tmp_path, served(named, more)) as (_, tls), browser.tab() as tab:
        tab.open(f"https://{PUBLIC}:{tls}/")
        check_page_works(tab)


def test_behind_plain_http_the_page_works_if_the_host_is_passed_on(
    browser: Browser, named: WorkerProcess, tmp_path: Path
) -> None:
    """There browsers name the page's origin alone, and the worker compares it with Host."""
    for more, status in (("proxy_set_header Host $http_host;", 202), ("", 403)):
        with nginx(tmp_path, served(named, more)) as (port, _):
            assert asked(browser, f"http://{PUBLIC}:{port}/", CANCEL) == status


def test_a_public_name_that_is_passed_on_must_be_allowed(browser: Browser, safe: WorkerProcess, tmp_path: Path) -> None:
    with nginx(tmp_path, served(safe, "proxy_set_header Host $host;")) as (_, tls), browser.tab() as tab:
        tab.open(f"https://{PUBLIC}:{tls}/")
        assert "WRONG_HOST" in tab.text("body")
        assert f"'{PUBLIC}'" in tab.text("body")
        assert "--allowed-host" in tab.text("body")


@pytest.mark.parametrize("more", ["", "proxy_set_header Host $host;"])
def test_no_page_of_another_site_commands_a_worker_behind_nginx(
    browser: Browser, port: int, named: WorkerProcess, tmp_path: Path, more: str
) -> None:
    with nginx(tmp_path, served(named, more)) as (unencrypted, tls):
        for site in (f"https://{PUBLIC}:{tls}", f"http://{PUBLIC}:{unencrypted}"):
            refused = named.metrics()['worker_refusals_total{code="FORBIDDEN"}']
            with browser.tab() as tab:
                tab.open(f"http://{EVIL}:{port}/")
                tab.evaluate("fetch(url, {method: 'POST', mode: 'no-cors'}).then(() => 0)", url=f"{site}/shutdown")
            assert named.metrics()['worker_refusals_total{code="FORBIDDEN"}'] == refused + 1
    assert named.health()["state"] == "ready"


def test_a_proxy_that_rewrites_the_host_hides_a_rebound_name_unless_it_names_its_server(
    browser: Browser, safe: WorkerProcess, tmp_path: Path
) -> None:
    """Over TLS a browser says that such a page is of the same site. So nginx must refuse other names."""
    url = "https://rebound.example.net"
    for servers, status in ((served(safe, name="_"), 200), (NO_OTHER + served(safe), 421)):
        with nginx(tmp_path, servers) as (_, tls), browser.tab() as tab:
            tab.open(f"{url}:{tls}/livez")
            got, text = tab.evaluate("fetch('/v1/models').then(async r => [r.status, await r.text()])")
            assert got == status
            assert ('"object":"list"' in text) == (status == 200)
            assert asked(browser, f"https://{PUBLIC}:{tls}/", "fetch('/v1/models')") == 200
