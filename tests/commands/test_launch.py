"""`llorch-worker launch`: each agent's configuration parses and names the worker, and nothing of the user's is lost."""

import json
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.clients.pages import blocks
from tests.loopback import LoopbackServer, QuietHandler, reserved_port
from worker.cli import run
from worker.commands.launch import AGENTS, Configuration, Served, configuration_of, merged

SERVED = Served("http://127.0.0.1:8080", "qwen2.5-coder", 32_768, "s3cret")
every_agent = pytest.mark.parametrize("name", AGENTS)
READERS = {".json": json.loads, ".toml": tomllib.loads, ".yaml": yaml.safe_load, ".yml": yaml.safe_load}

Json = dict[str, Any]


def read(configuration: Configuration) -> Json:
    """The configuration in the eyes of a parser of its format."""
    parsed: Json = READERS[Path(configuration.path).suffix](configuration.text)
    return parsed


def leaves(value: Any) -> Iterator[Any]:
    """All keys and values that are not collections."""
    if isinstance(value, dict):
        for name, member in value.items():
            yield name
            yield from leaves(member)
    elif isinstance(value, list):
        for member in value:
            yield from leaves(member)
    else:
        yield value


# ── what is in it ────────────────────────────────────────────────────────────────────────────────


@every_agent
def test_a_configuration_names_the_address_the_model_the_token_and_the_context_if_the_agent_reads_it(name: str) -> None:
    found = [*leaves(read(configuration_of(name, SERVED)))]
    assert any(SERVED.model in str(leaf).split("/") for leaf in found)
    assert SERVED.token in found
    assert (SERVED.url if name == "claude" else f"{SERVED.url}/v1") in found
    assert (str(SERVED.context) in map(str, found)) == (name not in {"aider", "cline"})


@every_agent
def test_any_name_of_a_model_is_read_back_and_survives_the_shell(name: str) -> None:
    model = 'it\'s "a" $(model)\\ ü\x7f'
    configuration = configuration_of(name, Served("http://[::1]:80", model, 1000))
    assert any(model in str(leaf) for leaf in leaves(read(configuration)))
    words = shlex.split(configuration.start)
    assert all("(model)" not in word or model in word for word in words)


@every_agent
def test_the_command_names_the_file_unless_the_agent_finds_it_by_itself(name: str) -> None:
    configuration = configuration_of(name, SERVED)
    is_named = f"~/{configuration.path}" in configuration.start
    assert is_named or name in {"codex", "pi", "cline"}
    assert (f"~/{configuration.path}").startswith("~/.cline/llorch-worker/") == (name == "cline")


SETTINGS: dict[str, list[tuple[str | int, ...]]] = {
    "pi": [("providers", "worker", "api"), ("providers", "worker", "models", 0, "contextWindow")],
    "claude": [("env", "ANTHROPIC_AUTH_TOKEN"), ("env", "CLAUDE_CODE_MAX_CONTEXT_TOKENS")],
    "codex": [("model_providers", "worker", "wire_api"), ("model_context_window",)],
    "continue": [("models", 0, "apiBase"), ("models", 0, "capabilities")],
    "opencode": [("provider", "worker", "npm"), ("provider", "worker", "options", "baseURL")],
    "qwen": [("env", "OPENAI_BASE_URL"), ("env", "OPENAI_MODEL")],
    "cline": [("providers", "openai-compatible", "settings", "baseUrl")],
    "aider": [("openai-api-base",)],
}
"""The members by which each agent is pointed at a server."""


@every_agent
def test_the_members_are_those_that_the_agent_reads(name: str) -> None:
    for place in SETTINGS[name]:
        found: Any = read(configuration_of(name, SERVED))
        for step in place:
            found = found[step]
        assert found


# ── the command ──────────────────────────────────────────────────────────────────────────────────


class Models(QuietHandler):
    """A worker's list of models, for those who have the token."""

    def do_GET(self) -> None:
        server: Any = self.server
        is_known = self.headers.get("authorization") == f"Bearer {SERVED.token}"
        status, body = (200, server.body) if is_known else (401, b"{}")
        self.send_response(status if self.path == "/v1/models" else 404)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LLORCH_API_TOKEN", str(SERVED.token))
    return tmp_path


def serving(body: bytes) -> LoopbackServer:
    server = LoopbackServer(Models)
    server._server.body = body  # type: ignore[attr-defined]
    return server


CARDS = json.dumps({"data": [{"id": SERVED.model, "max_model_len": SERVED.context}]}).encode()


@every_agent
@pytest.mark.parametrize("tail", ["", "/", "/v1", "/v1/"])
def test_stdout_is_the_configuration_for_the_worker_that_answers(
    name: str, tail: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(CARDS) as server:
        assert run(["launch", name, "--url", f"{server.url}{tail}"]) == 0
        expected = configuration_of(name, Served(server.url, SERVED.model, SERVED.context, SERVED.token))
    out, err = capsys.readouterr()
    assert out == expected.text
    assert err.splitlines() == [f"belongs in {home / expected.path}", f"start with: {expected.start}"]
    assert [*home.iterdir()] == []


@every_agent
def test_write_puts_it_where_the_agent_looks_and_only_its_owner_can_read_it(
    name: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(CARDS) as server:
        for _ in range(2):
            assert run(["launch", name, "--write", "--url", server.url]) == 0
        expected = configuration_of(name, Served(server.url, SERVED.model, SERVED.context, SERVED.token))
    path = home / expected.path
    assert capsys.readouterr().out == ""
    assert path.read_text() == expected.text
    assert path.stat().st_mode & 0o777 == 0o600
    assert [*path.parent.iterdir()] == [path]


@pytest.fixture
def pis(home: Path) -> Path:
    path = home / ".pi" / "agent" / "models.json"
    path.parent.mkdir(parents=True)
    return path


def test_a_file_that_an_agent_has_for_all_its_providers_keeps_the_others(pis: Path) -> None:
    pis.write_text('{"providers": {"mine": {"api": "é"}, "worker": {"old": 1}}, "other": [1]}')
    with serving(CARDS) as server:
        assert run(["launch", "pi", "--write", "--url", server.url]) == 0
    found = json.loads(pis.read_text())
    assert (found["other"], found["providers"]["mine"]) == ([1], {"api": "é"})
    assert found["providers"]["worker"]["baseUrl"] == f"{server.url}/v1"


def test_a_file_that_is_not_json_is_left_alone(pis: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pis.write_text("{ // mine\n}")
    with serving(CARDS) as server:
        assert run(["launch", "pi", "--write", "--url", server.url]) == 2
    assert f"{pis} is not JSON" in capsys.readouterr().err
    assert pis.read_text() == "{ // mine\n}"


JSON = st.recursive(st.none() | st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner))


@given(JSON, JSON)
def test_what_is_merged_has_all_of_the_new_and_the_rest_of_the_old(ours: Any, new: Any) -> None:
    found = merged(ours, new)
    assert merged(found, new) == found
    if isinstance(ours, dict) and isinstance(new, dict):
        assert {*found} == {*ours, *new}
        assert all(found[name] == ours[name] for name in {*ours} - {*new})
    else:
        assert found == new


# ── without a worker ─────────────────────────────────────────────────────────────────────────────


def test_without_an_answer_the_error_says_where_it_asked(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with reserved_port() as (port, _):
        url = f"http://127.0.0.1:{port}"
        assert run(["launch", "pi", "--url", url]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"llorch-worker: error: no worker answers at {url}: ")
    assert "--url" in err


@pytest.mark.parametrize(
    ("body", "token", "said"),
    [
        *((body, SERVED.token, "is not a worker") for body in (b"", b"[]", b'{"data":[]}', b'{"data":[{"id":"m"}]}')),
        (CARDS, "another", "LLORCH_API_TOKEN"),
    ],
)
@pytest.mark.usefixtures("home")
def test_a_server_that_is_no_worker_or_a_wrong_token_is_named_and_no_token_is_shown(
    body: bytes, token: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLORCH_API_TOKEN", token)
    with serving(body) as server:
        assert run(["launch", "pi", "--url", server.url]) == 1
    err = capsys.readouterr().err
    assert said in err
    assert server.url in err
    assert token not in err


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://x", "http://a:b", ""])
@pytest.mark.usefixtures("home")
def test_what_is_no_url_is_a_usage_error(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["launch", "pi", "--url", url]) == 2
    assert "is not a URL" in capsys.readouterr().err


# ── the page ─────────────────────────────────────────────────────────────────────────────────────

HEADINGS = {"claude": "Claude Code", "codex": "Codex", "qwen": "Qwen Code", "cline": "Cline", "continue": "Continue"}
LANGUAGES = {".json": "json", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}


@every_agent
def test_the_page_shows_what_launch_prints(name: str) -> None:
    expected = configuration_of(name, Served("http://127.0.0.1:8080", "any", 32_768))
    heading, language = HEADINGS.get(name, name), LANGUAGES[Path(expected.path).suffix]
    assert blocks("docs/clients.md", heading, language) == [expected.text]
    assert blocks("docs/clients.md", heading, "sh") == [f"{expected.start}\n"]
