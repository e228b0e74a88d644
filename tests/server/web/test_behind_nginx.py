"""A worker without a token behind a real nginx, with its defaults and as docs/security.md says, seen from a browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chromium import Browser
from tests.nginx_process import nginx
from tests.server.web.strange_pages import EVIL, PUBLIC, browsing, check_page_works, serving_pages
from tests.worker_process import WorkerProcess, serving_toy

pytestmark = pytest.mark.process

DEFAULT = (
    "server {{ listen {listen}; server_name {name}; location / {{ proxy_pass http://127.0.0.1:{port}; {more} }} }}"
)
"""nginx sends the worker the host of `proxy_pass`, whatever the client asked for, unless `more` changes that."""
NO_OTHER = "server { listen TLS ssl default_server; listen PLAIN default_server; return 421; }"
"""The block for all hosts that no other block names."""

plain = serving_toy()
named = serving_toy("--allowed-host", PUBLIC)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


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


def test_a_public_name_that_is_passed_on_must_be_allowed(
    browser: Browser, plain: WorkerProcess, tmp_path: Path
) -> None:
    with nginx(tmp_path, served(plain, "proxy_set_header Host $host;")) as (_, tls), browser.tab() as tab:
        tab.open(f"https://{PUBLIC}:{tls}/")
        assert "WRONG_HOST" in tab.text("body")
        assert f"'{PUBLIC}'" in tab.text("body")
        assert "--allowed-host" in tab.text("body")


@pytest.mark.parametrize("more", ["", "proxy_set_header Host $host;"])
def test_no_page_of_another_site_commands_a_worker_behind_nginx(
    browser: Browser, named: WorkerProcess, tmp_path: Path, more: str
) -> None:
    with nginx(tmp_path, served(named, more)) as (port, tls), serving_pages() as evil:
        for site in (f"https://{PUBLIC}:{tls}", f"http://{PUBLIC}:{port}"):
            refused = named.metrics()['worker_refusals_total{code="FORBIDDEN"}']
            with browser.tab() as tab:
                tab.open(f"http://{EVIL}:{evil}/")
                tab.evaluate("fetch(url, {method: 'POST', mode: 'no-cors'}).then(() => 0)", url=f"{site}/shutdown")
            assert named.metrics()['worker_refusals_total{code="FORBIDDEN"}'] == refused + 1
    assert named.health()["state"] == "ready"


def test_a_proxy_that_rewrites_the_host_hides_a_rebound_name_unless_it_names_its_server(
    browser: Browser, plain: WorkerProcess, tmp_path: Path
) -> None:
    """Over TLS a browser says that such a page is of the same site. So nginx must refuse other names."""
    url = "https://rebound.example.net"
    for servers, status in ((served(plain, name="_"), 200), (NO_OTHER + served(plain), 421)):
        with nginx(tmp_path, servers) as (_, tls), browser.tab() as tab:
            tab.open(f"{url}:{tls}/livez")
            got, text = tab.evaluate("fetch('/v1/models').then(async r => [r.status, await r.text()])")
            assert got == status
            assert ('"object":"list"' in text) == (status == 200)
            assert asked(browser, f"https://{PUBLIC}:{tls}/", "fetch('/v1/models')") == 200
