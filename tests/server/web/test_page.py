"""The page at `/` as a person sees it in a browser: what it shows, does and asks for; and no answer takes it over.

The page at /docs is complete in itself, and allowed nothing else.
"""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.chromium import Browser, Tab, chromium
from tests.gates import Gates
from tests.hostile_texts import PATIENCE, TEXTS
from tests.path_proxy import below_a_path
from tests.server.web.wire import request_of
from tests.toy_engine import ANSWER, HOSTILE
from tests.worker_process import (
    ONE_SLOT,
    PATIENCE_S,
    Stream,
    WorkerProcess,
    eventually,
    gated,
    serve_default,
    toy_worker,
)
from worker.server.web import server
from worker.server.web.pages import PAGE_PATHS

pytestmark = [pytest.mark.process, pytest.mark.model]

TOKEN = "correct-horse-battery-staple"
GIVEN = {"authorization": f"Bearer {TOKEN}"}

LONG = '{"type": "array", "items": {"type": "integer"}, "minItems": 700}'
"""A schema whose answers take longer than a test looks at them."""

ANSWERED = "!document.querySelector('#stop').checkVisibility() && document.querySelector('.turn.assistant') !== null"
LAST = ".turn.assistant:last-child"

ALLOWED = {
    *("DIV", "P", "H3", "H4", "H5", "H6", "HR", "UL", "OL", "LI", "BLOCKQUOTE", "PRE", "CODE", "SPAN", "BUTTON"),
    *("STRONG", "EM", "S", "A", "TABLE", "THEAD", "TBODY", "TR", "TH", "TD"),
}
"""The elements that an answer may become."""
ALLOWED_ATTRIBUTES = {"class", "type", "tabindex", "start", "href", "title", "target", "rel", "aria-busy"}


@dataclass(frozen=True)
class Guarded:
    """A worker that wants a token, with room for one job that runs and one that waits."""

    worker: WorkerProcess
    gates: Gates

    def is_idle(self) -> bool:
        return not self.worker.health()["slots_busy"]

    def n_cancelled(self) -> int:
        found = re.search(r'^worker_requests_total{outcome="cancelled",.*} (\d+)', self.metrics(), re.MULTILINE)
        assert found is not None
        return int(found[1])

    def metrics(self) -> str:
        return self.worker.get("/metrics", headers=GIVEN).text


@pytest.fixture(scope="module")
def guarded(any_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    gates, command = gated(tmp_path_factory.mktemp("page"))
    flags = (*ONE_SLOT, "--max-queue", "1", "--ctx-size", "2048")
    with serve_default(any_model, *flags, command=command, environment={"LLORCH_API_TOKEN": TOKEN}) as worker:
        gates.open("load")
        worker.ready()
        yield Guarded(worker, gates)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(chromium(), tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@contextmanager
def visited(browser: Browser, url: str, *, has_policy: bool = True, **window: Any) -> Iterator[Tab]:
    """A tab with the page; whatever was done with it, it asked nobody else, and the browser had nothing to refuse."""
    with browser.tab(**window) as tab:
        tab.call("Page.setBypassCSP", enabled=not has_policy)
        tab.open(url)
        yield tab
        tab.evaluate("0")
        assert tab.complaints == []
        asked = {request["url"] for request in tab.requests if not request["url"].startswith("data:")}
        assert {address for address in asked if not address.startswith(url)} == set()


@pytest.fixture
def tab(browser: Browser, guarded: Guarded) -> Iterator[Tab]:
    """The page, with its token."""
    with visited(browser, f"{guarded.worker.url}/") as tab:
        let_in(tab)
        yield tab
    eventually(guarded.is_idle)


def give_token(tab: Tab, token: str) -> None:
    tab.until("document.querySelector('#token').checkVisibility()")
    tab.fill("#token", token)
    tab.press("Enter")


def let_in(tab: Tab) -> None:
    """Give the right token. What is on the page moves once the question for it is gone, and a click would miss it."""
    give_token(tab, TOKEN)
    tab.until("document.querySelector('#state').textContent === 'ready'")


def set_field(tab: Tab, name: str, value: object) -> None:
    tab.fill(f"#settings [name={name}]", str(value))


def ask(tab: Tab, question: str) -> None:
    tab.fill("#prompt", question)
    tab.press("Enter")


def turns(tab: Tab) -> list[dict[str, Any]]:
    """The conversation as the page has it; what is on screen is Markdown made into elements."""
    kept: list[dict[str, Any]] = tab.evaluate("JSON.parse(Object.values(sessionStorage)[0]).turns")
    return kept


def asked(tab: Tab) -> list[dict[str, Any]]:
    """The bodies of all chat requests."""
    requests = [each for each in tab.requests if each["url"].endswith("/v1/chat/completions")]
    return [json.loads(each["postData"]) for each in requests]


# ── a conversation ───────────────────────────────────────────────────────────────────────────────


def test_a_conversation_streams_and_shows_the_workers_text(tab: Tab, guarded: Guarded) -> None:
    settings = {"temperature": 0, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1}
    settings |= {"max_tokens": 40, "seed": -3}
    for name, value in settings.items():
        set_field(tab, name, value)
    set_field(tab, "stop", "###\n<end>")
    set_field(tab, "system", "You are brief.")
    tab.evaluate(
        "void new MutationObserver(() => (window.lengths ??= new Set()).add(log.innerText.length))"
        ".observe(log, {subtree: true, childList: true, characterData: true})"
    )
    for n_answers, question in enumerate(("Name three colours.", "And three rivers?"), start=1):
        ask(tab, question)
        tab.until(
            f"{ANSWERED} && document.querySelectorAll('.turn.assistant .usage:not(:empty)').length === n", n=n_answers
        )
    assert tab.evaluate("window.lengths.size") > 5
    bodies = asked(tab)
    assert len(bodies) == n_answers
    streamed = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    expected = {**settings, "stop": ["###", "<end>"], **streamed}
    for n, body in enumerate(bodies):
        assert body == {"model": body["model"], "messages": body["messages"], **expected}
        said = [{"role": turn["role"], "content": turn["content"]} for turn in turns(tab)]
        assert body["messages"] == [{"role": "system", "content": "You are brief."}, *said[: 2 * n + 1]]
        whole = {**body, "stream": False}
        del whole["stream_options"]
        answer = guarded.worker.post("/v1/chat/completions", json=whole, headers=GIVEN).json()
        assert said[2 * n + 1]["content"] == answer["choices"][0]["message"]["content"] != ""
    usage = tab.text(f"{LAST} .usage")
    assert "tokens/s" in usage
    assert "prompt tokens cached" in usage


def test_the_stop_button_cancels_the_job_in_the_engine(tab: Tab, guarded: Guarded) -> None:
    set_field(tab, "schema", LONG)
    set_field(tab, "temperature", 0)
    ask(tab, "Numbers!")
    tab.until("document.querySelector(s)?.innerText.length > 20", s=f"{LAST} pre")
    n_cancelled = guarded.n_cancelled()
    tab.click("#stop")
    tab.until(ANSWERED)
    eventually(guarded.is_idle)
    assert guarded.n_cancelled() == n_cancelled + 1
    assert "stopped" in tab.text(f"{LAST} .usage")
    assert tab.text(f"{LAST} pre").startswith("[")
    assert tab.shows("#send")


def test_a_token_s_probability_and_the_five_likeliest_are_shown(tab: Tab) -> None:
    tab.click("#settings [name=probabilities]")
    set_field(tab, "max_tokens", 12)
    ask(tab, "Say something in Japanese.")
    tab.until(f"{ANSWERED} && document.querySelectorAll('.token').length > 3")
    assert (asked(tab)[-1]["logprobs"], asked(tab)[-1]["top_logprobs"]) == (True, 5)
    assert tab.evaluate("document.querySelector(s).textContent", s=f"{LAST} .tokens") == turns(tab)[-1]["content"]
    tab.point(f"{LAST} .token:nth-child(2)")
    tab.until("odds.checkVisibility()")
    assert 5 <= tab.evaluate("odds.querySelectorAll('tr').length") <= 6
    assert tab.evaluate("odds.querySelectorAll('.drawn').length") == 1
    tab.evaluate("document.querySelector(s).focus()", s=f"{LAST} .token")
    tab.press("ArrowRight")
    assert tab.evaluate("document.activeElement.matches('.token:nth-child(2)')")
    tab.click("#settings [name=probabilities]")
    assert not tab.shows(".token")
    assert tab.text(f"{LAST} .body").strip() != ""


TOOLS = [{"name": "get_weather", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}]
WHOLE = [
    {"reasoning_content": "Let me <b>think</b>."},
    {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "get_weather", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"n": '}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
]
"""The deltas of an answer with reasoning and a call."""


def test_reasoning_is_folded_and_a_call_is_its_name_and_arguments(tab: Tab) -> None:
    tab.evaluate(
        "import('/page/parts.js').then(({take, Aside}) => {"
        " const aside = new Aside(), turn = {content: '', reasoning: '', calls: []};"
        " log.append(aside.thoughts, aside.calls);"
        " for (const delta of deltas) { take(turn, delta); aside.draw(turn) } window.turn = turn })",
        deltas=WHOLE,
    )
    assert tab.evaluate("window.turn") == {
        "content": "",
        "reasoning": "Let me <b>think</b>.",
        "calls": [{"name": "get_weather", "arguments": '{"n": 1}'}],
    }
    assert tab.evaluate("document.querySelector('.thoughts').checkVisibility()")
    assert not tab.shows(".thought")
    tab.click(".thoughts summary")
    assert tab.text(".thought") == "Let me <b>think</b>."
    assert tab.evaluate("document.querySelectorAll('.call').length") == 1
    assert tab.evaluate("document.querySelector('.call h3').textContent") == "get_weather"
    assert json.loads(tab.evaluate("document.querySelector('.call code').textContent")) == {"n": 1}
    tab.call("Page.reload")
    tab.until("document.querySelector('#state')?.textContent === 'ready'")


def test_tools_of_the_settings_are_offered(tab: Tab) -> None:
    set_field(tab, "tools", json.dumps(TOOLS))
    set_field(tab, "max_tokens", 4)
    ask(tab, "The weather?")
    tab.until(f"{ANSWERED} && document.querySelector(s).innerText !== ''", s=f"{LAST} .usage")
    assert asked(tab)[-1]["tools"] == [{"type": "function", "function": each} for each in TOOLS]


def test_invalid_settings_are_shown_before_a_request_is_sent(tab: Tab) -> None:
    for name, value in {"schema": "{", "tools": "[", "temperature": "7"}.items():
        set_field(tab, name, value)
        ask(tab, "Hello")
        assert tab.evaluate("document.activeElement.name") == name
        tab.evaluate("document.querySelector(s).value = ''", s=f"#settings [name={name}]")
    assert asked(tab) == []


# ── a worker in other states ─────────────────────────────────────────────────────────────────────


def test_a_wrong_token_is_reported_and_the_right_one_is_stored_for_this_tab(browser: Browser, guarded: Guarded) -> None:
    with visited(browser, f"{guarded.worker.url}/") as tab:
        give_token(tab, "wrong")
        tab.until("document.querySelector('#token-wrong').innerText !== ''")
        assert tab.text("#state") == "token required"
        give_token(tab, TOKEN)
        tab.until("!document.querySelector('#token-form').checkVisibility()")
        tab.until("document.querySelector('#cells').textContent.includes(' of ')")
        tab.call("Page.reload")
        tab.until("document.querySelector('#state')?.textContent === 'ready'")
        assert not tab.shows("#token-form")
    assert not any(TOKEN in request["url"] for request in tab.requests)


def test_a_full_queue_is_shown_with_the_time_to_wait(tab: Tab, guarded: Guarded) -> None:
    with ExitStack() as jobs:
        for job_id in ("runs", "waits"):
            job = jobs.enter_context(Stream(guarded.worker.url, request_of(job_id), GIVEN))
            if job_id == "runs":
                job.until("token")
        ask(tab, "Is there room?")
        tab.until("notice.checkVisibility()")
        assert "Try again in" in tab.text("#notice")
        tab.until("document.querySelector('#queue').textContent === '1 waiting'")
        assert tab.text("#slots") == "1 of 1 busy"
        assert tab.evaluate("document.querySelector('#prompt').value") == "Is there room?"
        assert turns(tab) == []


def test_a_crashed_engine_is_shown_and_its_successor_answers(tab: Tab, guarded: Guarded) -> None:
    set_field(tab, "schema", LONG)
    ask(tab, "Numbers!")
    tab.until("document.querySelector(s)?.innerText.length > 20", s=f"{LAST} pre")
    guarded.gates.shut("load")
    guarded.worker.engine.send_signal(signal.SIGKILL)
    tab.until("document.querySelector('.failure') !== null")
    tab.until("banner.checkVisibility()")
    assert tab.text("#state") == "restarting"
    assert "engine" in tab.text("#banner")
    ask(tab, "Are you there?")
    tab.until("notice.checkVisibility()")
    guarded.gates.open("load")
    tab.until("document.querySelector('#state').textContent === 'ready' && !banner.checkVisibility()")
    tab.evaluate("document.querySelector('#settings [name=schema]').value = ''")
    set_field(tab, "max_tokens", 4)
    ask(tab, "Are you there?")
    tab.until(f"{ANSWERED} && document.querySelector(s).innerText !== ''", s=f"{LAST} .usage")
    assert not tab.shows("#notice")


def test_loading_and_draining_workers_are_shown_as_such(browser: Browser, any_model: Path, tmp_path: Path) -> None:
    gates, command = gated(tmp_path)
    with serve_default(any_model, "--ctx-size", "2048", command=command) as worker:
        worker.listening().wait_for("model_load_progress", percent=0)
        with visited(browser, f"{worker.url}/") as tab:
            tab.until("banner.checkVisibility()")
            assert tab.text("#state") == "loading"
            assert "is loading" in tab.text("#banner")
            gates.open("load")
            tab.until("document.querySelector('#state').textContent === 'ready' && !banner.checkVisibility()")
        with worker.stream(prompt="Once upon a time", max_tokens=1900, ignore_eos=True) as stream:
            stream.until("token")
            worker.terminate()
            with visited(browser, f"{worker.url}/") as tab:
                tab.until("banner.checkVisibility()")
                assert tab.text("#state") == "draining"
                assert "shutting down" in tab.text("#banner")
            worker.post(f"/cancel/{stream.job_id}")
        assert worker.exit_code() == 0


# ── a hostile answer ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("has_policy", [True, False])
def test_no_answer_becomes_more_than_its_letters(browser: Browser, tmp_path: Path, has_policy: bool) -> None:
    """This holds with the policy, which then had nothing to refuse, and without it."""
    with toy_worker(tmp_path, kind=HOSTILE) as worker:
        worker.ready()
        with visited(browser, f"{worker.url}/", has_policy=has_policy) as tab:
            tab.until("document.querySelector('#state').textContent === 'ready'")
            ask(tab, "Take this page over.")
            tab.until(ANSWERED)
            assert turns(tab)[-1]["content"].startswith(ANSWER)
            check_harmless(tab)


def test_no_text_becomes_more_than_its_letters_wherever_it_is_cut(tab: Tab) -> None:
    """An answer grows: each beginning of it is shown once."""
    for text in TEXTS:
        tab.evaluate(
            "import('/page/markdown.js').then(({show}) => {"
            " const body = log.appendChild(document.createElement('div')); body.className = 'written';"
            " for (let n = 0; n <= text.length; n += 1) show(body, text.slice(0, n)) })",
            text=text,
        )
    check_harmless(tab)


def check_harmless(tab: Tab) -> None:
    assert tab.evaluate("window.owned === undefined")
    found = tab.evaluate(
        "[...log.querySelectorAll('.written *, .written')].flatMap(e => [e.tagName, ...e.getAttributeNames()])"
    )
    assert set(found) <= ALLOWED | ALLOWED_ATTRIBUTES
    links = tab.evaluate("[...log.querySelectorAll('a')].map(a => [a.protocol, a.rel])")
    assert all(protocol in {"http:", "https:"} and "noopener" in rel for protocol, rel in links)
    assert not any("owned" in request["url"] for request in tab.requests)


def test_no_text_holds_the_page_up(tab: Tab) -> None:
    """A pattern that tries everything would take longer than any wait of these tests."""
    for text in PATIENCE:
        tab.evaluate(
            "import('/page/markdown.js').then(({show}) => show(document.createElement('div'), text))",
            text=text,
        )


def test_events_are_the_same_however_their_bytes_are_cut(tab: Tab) -> None:
    """A cut may be in the middle of a character."""
    text = 'data: {"t":"日本語 🙂"}\n\n: a comment\n\ndata: {"t":"é\u2028\\n"}\r\n\r\nevent: x\ndata: [DONE]\n\n'
    expected = ['{"t":"日本語 🙂"}', '{"t":"é\u2028\\n"}', "[DONE]"]
    found = tab.evaluate(
        "import('/page/stream.js').then(async ({events}) => {"
        " const bytes = new TextEncoder().encode(text), seen = new Set();"
        " const read = async (...cuts) => {"
        "  const data = [];"
        "  const at = [0, ...cuts, bytes.length];"
        "  const chunks = at.slice(1).map((end, n) => bytes.slice(at[n], end));"
        "  for await (const each of events((async function* () { yield* chunks })())) data.push(each);"
        "  seen.add(JSON.stringify(data)) };"
        " for (let a = 0; a <= bytes.length; a += 1) for (let b = a; b <= bytes.length; b += 5) await read(a, b);"
        " await read(...bytes.keys());"
        " return [...seen] })",
        text=text,
    )
    assert [json.loads(each) for each in found] == [expected]


# ── the same as code ─────────────────────────────────────────────────────────────────────────────


def test_the_shown_code_requests_the_conversation_on_screen(tab: Tab, guarded: Guarded) -> None:
    """Pasted into a shell and into Python they give the answer that the page has."""
    for name, value in {"temperature": 0, "top_k": 3, "repetition_penalty": 1.1, "max_tokens": 12}.items():
        set_field(tab, name, value)
    question = "What's \"this\" \\ `that` $HOME in 'Köln' 🙂?"
    ask(tab, question)
    tab.until(f"{ANSWERED} && document.querySelector(s).innerText !== ''", s=f"{LAST} .usage")
    answer = turns(tab)[-1]["content"]
    tab.click("#show-code")
    curl = tab.evaluate("document.querySelector('#code-text').textContent")
    tab.click("#as-python")
    python = tab.evaluate("document.querySelector('#code-text').textContent")
    assert TOKEN not in curl + python
    told = json.loads(run(["bash", "-c", curl.replace("curl ", "curl --silent --noproxy '*' ", 1)]))
    assert told["choices"][0]["message"]["content"] == answer
    assert run([sys.executable, "-c", python]) == answer + "\n"


def run(command: list[str]) -> str:
    environment = {**os.environ, "LLORCH_API_TOKEN": TOKEN, "NO_PROXY": "127.0.0.1", "PYTHONUTF8": "1"}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    ).stdout


# ── who sees it, and where ───────────────────────────────────────────────────────────────────────


def test_it_works_below_a_path_of_a_proxy(browser: Browser, guarded: Guarded) -> None:
    with below_a_path("/gpu-0", guarded.worker.port) as url, visited(browser, f"{url}/gpu-0/") as tab:
        let_in(tab)
        set_field(tab, "max_tokens", 4)
        ask(tab, "Hello")
        tab.until(f"{ANSWERED} && document.querySelector(s).innerText !== ''", s=f"{LAST} .usage")


def test_every_control_has_a_name_and_nothing_is_cut_off_on_a_phone(browser: Browser, guarded: Guarded) -> None:
    with visited(browser, f"{guarded.worker.url}/", width=360, height=640) as tab:
        let_in(tab)
        assert not tab.shows("#panel")
        tab.click("#show-panel")
        assert tab.shows("#settings [name=temperature]")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 360
        nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    asked_for = {"button", "textbox", "spinbutton", "checkbox", "meter", "log", "tab"}
    named = [(node["role"]["value"], node["name"]["value"]) for node in nodes if node.get("role") and node.get("name")]
    controls = [(role, name) for role, name in named if role in asked_for]
    assert len(controls) > 15
    assert [role for role, name in controls if not name.strip()] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(browser: Browser, guarded: Guarded, scheme: str) -> None:
    """The contrast is at least 4.5 to 1 by WCAG's measure."""
    with visited(browser, f"{guarded.worker.url}/", scheme=scheme) as tab:
        give_token(tab, "wrong")
        tab.until("document.querySelector('#token-wrong').innerText !== ''")
        assert tab.evaluate(_FAINT) == []


_FAINT = """(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (color) => rgba(color).slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, n) => sum + c * [0.2126, 0.7152, 0.0722][n], 0);
  const under = (e) => {
    for (; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor;
      if (rgba(color)[3] === 255) return color;
    }
    return "white";
  };
  const hasText = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim() !== "");
  return [...document.body.querySelectorAll("*")].filter((e) => e.checkVisibility() && hasText(e)).filter((e) => {
    const [a, b] = [luminance(getComputedStyle(e).color), luminance(under(e))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05) < 4.5;
  }).map((e) => e.outerHTML.slice(0, 80));
})()"""


def test_exactly_its_files_are_open_and_they_load_nothing_from_other_servers(guarded: Guarded) -> None:
    page = guarded.worker.get("/")
    policy = page.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "http" not in policy
    assert (page.headers["x-content-type-options"], page.headers["referrer-policy"]) == ("nosniff", "no-referrer")
    for path in PAGE_PATHS:
        assert guarded.worker.get(path).status_code == 200
    for path in ("/page/nope.js", "/page/../app.py", "/page/%2e%2e%2fapp.py", "/page/chat.html"):
        assert guarded.worker.get(path).status_code == 401
        assert guarded.worker.get(path, headers=GIVEN).status_code == 404


def test_it_can_be_turned_off(any_model: Path) -> None:
    environment = {"LLORCH_API_TOKEN": TOKEN}
    with serve_default(any_model, "--no-page", "--ctx-size", "512", environment=environment) as worker:
        worker.listening()
        for path in PAGE_PATHS:
            assert worker.get(path).status_code == 401
            assert worker.get(path, headers=GIVEN).status_code == 404


# ── the page at /docs ────────────────────────────────────────────────────────────────────────────

FILES = Path(server.__file__).parent / "page"


@pytest.mark.parametrize("path", ["/docs", "/docs/"])
def test_the_page_holds_the_document_and_names_only_scripts_of_this_worker(client: httpx2.Client, path: str) -> None:
    response = client.get(path)
    (document,) = re.findall(r'<[^>]* id="document"[^>]*>([^<]*)<', response.text)
    assert json.loads(document) == client.get("/openapi/openapi.json").json()
    sources = re.findall(r' (?:src|href)="([^"]*)"', response.text)
    assert len(sources) == 2
    for source in sources:
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
        (nonce,) = set(re.findall(r' nonce="([^"]*)"', response.text))
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
