"""The page at /docs: complete in itself, allowed nothing else, and behind the token as a browser can give it."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import httpx2
import pytest

from tests.server.web.wire import exchange, head
from tests.worker_process import WorkerProcess, serving
from worker.server.web import server

pytestmark = [pytest.mark.process, pytest.mark.model]

TOKEN = "correct-horse:battery-staple"
FILES = Path(server.__file__).parent / "page"
PAGE_PATHS = ("/docs", "/docs/", "/docs/page.js", "/docs/redoc.standalone.js")


class Page(HTMLParser):
    """The scripts and links of a page, and the text of its elements with an id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.texts: dict[str, str] = {}
        self.nonces: set[str] = set()
        self._id = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.sources += [given[name] for name in ("src", "href") if name in given]
        self.nonces |= {given["nonce"]} if "nonce" in given else set()
        self._id = given.get("id", "")

    def handle_data(self, data: str) -> None:
        self.texts[self._id] = self.texts.get(self._id, "") + data


guarded = serving("shallow_model", "--ctx-size", "1024", environment={"LLORCH_API_TOKEN": TOKEN})


def basic(credentials: str) -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}"}


# ── what is shown ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["/docs", "/docs/"])
def test_the_page_holds_the_document_and_names_only_scripts_of_this_worker(client: httpx2.Client, path: str) -> None:
    response = client.get(path)
    page = Page(response.text)
    assert json.loads(page.texts["document"]) == client.get("/openapi/openapi.json").json()
    assert len(page.sources) == 2
    for source in page.sources:
        script = client.get(str(response.url.join(source)))
        assert (script.status_code, script.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
        assert script.content == (FILES / source.rpartition("/")[2]).read_bytes()


def test_the_policy_allows_the_worker_itself_and_a_nonce_that_is_never_repeated(client: httpx2.Client) -> None:
    nonces = set()
    for _ in range(2):
        response = client.get("/docs")
        header = response.headers["content-security-policy"]
        policy = dict(part.strip().partition(" ")[::2] for part in header.split(";"))
        for kind in ("default-src", "base-uri", "form-action", "frame-ancestors"):
            assert policy[kind] == "'none'"
        assert policy["script-src"] == "'self'"
        (nonce,) = Page(response.text).nonces
        assert f"'nonce-{nonce}'" in policy["style-src"]
        assert not re.search(r"https?:|\*|unsafe|blob:", header)
        nonces.add(nonce)
    assert len(nonces) == 2


def test_the_bundle_is_the_published_one_and_has_its_licences() -> None:
    told = re.search(r"sha256 `([0-9a-f]{64})`", (FILES / "README.md").read_text())
    assert told is not None
    assert hashlib.sha256((FILES / "redoc.standalone.js").read_bytes()).hexdigest() == told[1]
    assert "Permission is hereby granted" in (FILES / "redoc.LICENSE.txt").read_text()
    assert "DOMPurify" in (FILES / "redoc.standalone.js.LICENSE.txt").read_text()


# ── who may see it ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", PAGE_PATHS)
def test_a_browser_is_asked_for_the_token_and_may_give_it_as_a_password(guarded: WorkerProcess, path: str) -> None:
    refused = guarded.get(path)
    assert refused.status_code == 401
    assert refused.headers.get_list("www-authenticate") == ["Bearer", 'Basic realm="llorch-worker", charset="UTF-8"']
    for headers in (basic(f":{TOKEN}"), basic(f"anyone:{TOKEN}"), {"authorization": f"Bearer {TOKEN}"}):
        assert guarded.get(path, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "authorization",
    [
        *(
            basic("anyone")["authorization"],
            basic(f"anyone:{TOKEN}x")["authorization"],
            basic("anyone:")["authorization"],
        ),
        *("Basic", "Basic %%%", f"Basic {TOKEN}", "Basic 4pyT"),
    ],
)
def test_nothing_but_the_token_is_the_password(guarded: WorkerProcess, authorization: str) -> None:
    assert guarded.get("/docs", headers={"authorization": authorization}).status_code == 401


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("POST", "/execute"), ("POST", "/cancel/a"), ("POST", "/shutdown"), ("GET", "/metrics"), ("GET", "/nope")),
        *(("GET", "/openapi/openapi.json"), ("GET", "/docsx"), ("GET", "//docs"), ("POST", "/docs/../shutdown")),
    ],
)
def test_no_other_route_accepts_a_password(guarded: WorkerProcess, method: str, path: str) -> None:
    """A browser sends it along when another site's page makes it ask."""
    answer = exchange(guarded, head(method, path, content_length=0, **basic(f"anyone:{TOKEN}")))
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
