"""`llorch-worker launch NAME`: the configuration of a coding agent for a running worker."""

import json
import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from shlex import quote
from string import Template
from typing import Any

import httpx2
import msgspec
import rich_click as click
from msgspec.structs import replace

from worker.config.option import TOKEN
from worker.errors import UsageError, WorkerError

_DEFAULT_URL = "http://127.0.0.1:8080"
_PATIENCE_S = 10.0
_NO_KEY = "none"
"""The key that agents send if the worker has no token; they insist on having one."""
_MAX_ANSWER = 16_384
"""The most tokens of an answer that an agent is given to reserve."""
AGENTS = ("claude", "codex", "opencode", "pi", "qwen", "cline", "continue", "aider")


@dataclass(frozen=True, slots=True)
class Served:
    """A running worker, as an agent has to know it."""

    url: str
    """The worker's address without a slash at its end."""
    model: str
    context: int
    """The tokens of a conversation, prompt and answer together."""
    token: str | None = None


class Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An agent's configuration file and the command that uses it."""

    path: str
    """The file's path below the user's home."""
    text: str
    start: str
    """The command that starts the agent, as it is typed in a shell."""
    is_shared: bool = False
    """True if the agent has one such file for all its providers: then `text` is merged into it, and is JSON."""


def configuration_of(agent: str, served: Served) -> Configuration:
    """The configuration of one of AGENTS for a worker. An answer may take a quarter of the context at most."""
    agents = files(__package__).joinpath("agents.toml").read_bytes()
    known = msgspec.toml.decode(agents, type=dict[str, Configuration])[agent]
    texts = {"url": served.url, "v1": f"{served.url}/v1", "model": served.model, "key": served.token or _NO_KEY}
    numbers = {"context": served.context, "answer": min(served.context // 4, _MAX_ANSWER)}
    values = numbers | {name: _escaped(text) for name, text in texts.items()}
    text, start = Template(known.text).substitute(values), Template(known.start).substitute(word=quote(served.model))
    return replace(known, text=text, start=start)


def _escaped(text: str) -> str:
    """The text inside a string of JSON, YAML and TOML. JSON leaves DEL as it is, which the others do not have."""
    return json.dumps(text, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f")


class _Card(msgspec.Struct):
    """The served model, in the answer of /v1/models."""

    id: str
    max_model_len: int


class _Cards(msgspec.Struct):
    data: tuple[_Card, ...]


@click.command("launch")
@click.argument("name", type=click.Choice(AGENTS), metavar="NAME")
@click.option("--url", default=_DEFAULT_URL, show_default=True, metavar="URL", help="Use the worker at URL.")
@click.option(
    "--api-key",
    type=TOKEN,
    envvar=["LLORCH_API_TOKEN", "LLORCH_API_KEY"],
    metavar="TEXT",
    help="Send this token to the worker, and write it into the configuration. Prefer LLORCH_API_TOKEN.",
)
@click.option("--write", is_flag=True, help="Write the configuration to the agent's own place.")
def launch(name: str, *, url: str, api_key: str | None, write: bool) -> None:
    """Print the configuration of a coding agent for a running worker.

    NAME is claude, codex, opencode, pi, qwen, cline, continue or aider. The model's name and the context length come
    from the worker at --url. The configuration goes to stdout; its place and the command that starts the agent go to
    stderr.
    """
    configuration = configuration_of(name, ask(url, api_key))
    path = Path.home() / configuration.path
    if write:
        write_to(path, configuration)
    else:
        click.echo(configuration.text, nl=False)
    click.echo(f"{'written to' if write else 'belongs in'} {path}", err=True)
    click.echo(f"start with: {configuration.start}", err=True)


def ask(url: str, token: str | None) -> Served:
    """The worker at a URL, with the model that it serves. Raises: UsageError for no URL; WorkerError without answer."""
    base = url.rstrip("/").removesuffix("/v1")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        with httpx2.Client(timeout=_PATIENCE_S, trust_env=False) as client:
            response = client.get(f"{base}/v1/models", headers=headers)
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
        raise UsageError(f"--url {url} is not a URL: {error}; give one such as {_DEFAULT_URL}") from None
    except httpx2.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise WorkerError(f"no worker answers at {base}: {reason}; start one, or give its address as --url") from None
    if response.status_code == httpx2.codes.UNAUTHORIZED:
        raise WorkerError(f"the worker at {base} refuses the token; set LLORCH_API_TOKEN to its token")
    if response.status_code != httpx2.codes.OK:
        raise WorkerError(f"{base}/v1/models returned {response.status_code}; wait until the worker is ready")
    try:
        card = msgspec.json.decode(response.content, type=_Cards).data[0]
    except (msgspec.DecodeError, IndexError):
        raise WorkerError(f"{base} is not a worker: /v1/models names no model with its max_model_len") from None
    return Served(base, card.id, card.max_model_len, token)


def write_to(path: Path, configuration: Configuration) -> None:
    """Write the file, which only its owner can read, because it may hold a token. A shared file keeps the rest.

    Raises: UsageError if a shared file is not JSON.
    """
    text = configuration.text
    if configuration.is_shared and path.exists():
        text = f"{json.dumps(merged(_read(path), json.loads(text)), indent=2, ensure_ascii=False)}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    unfinished.replace(path)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}; add the lines that launch prints without --write") from None


def merged(ours: Any, new: Any) -> Any:
    """A JSON value with the members of another added. Where both have one that is no object, the other's counts."""
    if not isinstance(ours, dict) or not isinstance(new, dict):
        return new
    return ours | {name: merged(ours.get(name), value) for name, value in new.items()}
