"""Every option of `serve`: those of the engine (engine_settings.py), and those of the network and of the process.

The flags, the environment variables (`LLORCH_` + the name in upper case) and the config file's keys all come from the
two tables of rows, so that none can be forgotten.
"""

import platform
import re
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from worker.config.engine_settings import DEFAULT_PROMPT_CHARS, DEFAULT_TIMEOUT_SEC, DEFAULT_TOKENS_OUT, EngineSettings
from worker.config.option import ORIGIN, TOKEN, URL, ZMQ_ENDPOINT, SettingOption, flag_name, option_of
from worker.config.row import Form, Panel, of_network, of_operation
from worker.observe.log_lines import Format, Level

API_TOKEN = ("LLORCH_API_TOKEN", "LLORCH_API_KEY")
"""The variables that may hold the token of clients."""

_MIN_BODY_BYTES = 2 * 2**20
"""The protocol's limit for a request with the default longest prompt: the rest is for a constraint."""

_LONGEST_ESCAPE_BYTES = 12
"""The longest spelling of one character in JSON: beyond U+FFFF it may be written as two escapes of six bytes."""

_WORKER_IDS = uuid.UUID("6d1f9d0c-3a5e-4a1c-9a3e-0c1f4d2b7e55")
"""The namespace of ids made from names (RFC 9562, version 5); any fixed one."""

_OF_A_HUB = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9_][^/]*")
"""`org/repo`, with whatever stands behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(EngineSettings):
    """The settings of `serve`."""

    host: str = of_network("127.0.0.1", "Listen on this address.", metavar="ADDRESS")
    port: int = of_network(8080, "Listen on port N; 0 picks a free one.", (0, 65_535))
    callback_url: str | None = of_network(
        None, "Announce the ready worker to the pool manager at this full URL.", URL, show_default="stand-alone"
    )
    advertise_url: str | None = of_network(
        None, "Report this URL to the pool manager as the worker's uri.", URL, show_default="http://localhost:PORT"
    )
    max_connections_per_address: int = of_network(
        0,
        "Accept at most N concurrent requests from one client address; further ones get 503 WORKER_BUSY. Behind a "
        "proxy all clients share its address. 0 sets no limit.",
        (0, 1024),
        show_default="no limit",
    )
    api_key: str | None = of_network(
        None,
        "Require this bearer token from clients. Prefer LLORCH_API_TOKEN or LLORCH_API_KEY: process lists show a flag.",
        TOKEN,
        envvar=API_TOKEN[0],
        other_envvar=API_TOKEN[1],
        show_default="none: open",
    )
    cors_origin: tuple[str, ...] = of_network(
        (),
        "Allow browser requests from web pages of this origin (CORS). Can be repeated; in the environment, "
        "separate several with spaces or commas.",
        ORIGIN,
        metavar="ORIGIN",
        multiple=True,
        show_default="none",
    )
    allowed_host: tuple[str, ...] = of_network(
        (),
        "Answer requests for this host name, too. A worker without a token answers only addresses, local names and its "
        "own. Can be repeated; in the environment, separate several with spaces or commas.",
        Form(r"(?a)\*|(\*\.)?\w([\w.-]*\w)?", "a name without a port, *.NAME, or * for any host"),
        metavar="NAME",
        multiple=True,
        show_default="none",
    )
    legacy_callback_body: bool = of_network(False, "Send only the three legacy fields in the ready callback.")
    no_page: bool = of_network(False, "Do not serve the chat page at /.")
    sse_event_names: bool = of_network(False, "Write `event:` lines into event streams, for old clients.")
    no_keepalive: bool = of_network(False, "Do not send comments while an event stream is silent for long.")
    kv_events: str | None = of_network(
        None,
        "Publish over ZeroMQ which blocks of prompts are in this worker's KV cache, in vLLM's format, for routers. The "
        "next port replays missed events. Port 0 picks free ports.",
        ZMQ_ENDPOINT,
        metavar="tcp://IP:PORT",
        show_default="not published",
    )
    kv_events_topic: str | None = of_network(
        None, "Publish KV events under TOPIC; llm-d expects kv@POD@MODEL.", metavar="TOPIC", show_default="empty"
    )
    kv_events_public: bool = of_network(
        False,
        "Let --kv-events listen on an address that other machines reach. Anyone who connects there reads all prompts.",
    )

    worker_id: str = of_operation(
        None,
        "Name this worker in reports, log lines and metrics.",
        Form(r"[A-Za-z0-9_.:-]{1,256}", "1 to 256 of A-Z a-z 0-9 _ . : -"),
        metavar="ID",
        show_default="worker-<uuid>, the same after a restart on this machine with this model, host and port",
    )
    parity_report: Path | None = of_operation(
        None,
        "Show this report.json of a passed parity run in /health, and whether it covers the model as it runs here.",
        metavar="FILE",
    )
    require_parity: bool = of_operation(
        False, "Refuse to start if --parity-report does not cover exactly what would run here."
    )
    shutdown_timeout_sec: float = of_operation(
        25.0, "Wait this long for accepted jobs when the worker stops; 0 ends them at once.", (0, 86_400)
    )
    watchdog_sec: float = of_operation(
        30.0,
        "Restart the engine if it reports nothing for this long while it works; slow steps get longer.",
        (0.1, 86_400),
    )
    log_format: Format | None = of_operation(
        None, "Write log lines on stderr as JSON or as readable text.", show_default="pretty on a terminal"
    )
    log_level: Level = of_operation(
        "info", "Write log lines of this level and above; debug includes every line of the engine's stderr."
    )
    access_log: bool = of_operation(False, "Log a line for every HTTP request once it has been answered.")

    def __post_init__(self) -> None:
        EngineSettings.__post_init__(self)
        if self.worker_id is None:
            object.__setattr__(self, "worker_id", self._own_worker_id())

    @property
    def execute_tokens_out(self) -> int:
        """The largest max_tokens at `/execute`; `/v1` has the setting itself, which may be None."""
        return DEFAULT_TOKENS_OUT if self.max_tokens_out is None else self.max_tokens_out

    @property
    def execute_timeout_s(self) -> float:
        """The longest life of a job at `/execute`; `/v1` has the setting itself, which may be None."""
        return DEFAULT_TIMEOUT_SEC if self.inference_timeout_sec is None else self.inference_timeout_sec

    @property
    def max_body_bytes(self) -> int:
        """The largest request body, or the text in it: a prompt of --max-prompt-chars fits, however it is escaped."""
        more_chars = max(0, self.max_prompt_chars - DEFAULT_PROMPT_CHARS)
        return _MIN_BODY_BYTES + more_chars * _LONGEST_ESCAPE_BYTES

    @property
    def max_whole_bytes(self) -> int:
        """The largest request body on /v1 with its payloads."""
        return self.max_body_mb * 2**20

    @property
    def reported_model_ref(self) -> str:
        return self.model_ref or self.model or ""

    def served_name(self, name_in_file: str) -> str:
        """The model's name on `/v1` and in the series under vLLM's names: what the user typed, if anything."""
        return self.served_model_name or self.model_ref or typed_name(self.model or "") or name_in_file

    def _own_worker_id(self) -> str:
        """One id per machine, address and model, so that a restarted worker's series go on where they were.

        Nothing of a worker on any free port (--port 0) lasts, so its id is a fresh one.
        """
        if self.port == 0:
            return f"worker-{uuid.uuid4()}"
        what = (platform.node(), _machine_id(), self.host, str(self.port), self.reported_model_ref)
        name = "\0".join(what).encode(errors="backslashreplace").decode()  # a path may be no UTF-8
        return f"worker-{uuid.uuid5(_WORKER_IDS, name)}"


def typed_name(reference: str) -> str:
    """The reference as it was typed: of a path the file's name only, of a hub reference what follows `hf:`. It looks at
    no disk.
    """
    if reference.startswith("hf:"):
        return reference.removeprefix("hf:")
    path = reference.removeprefix("file:").rstrip("/")
    is_path = path != reference or path.lower().endswith(".gguf") or not _OF_A_HUB.fullmatch(path)
    return path.rpartition("/")[2] if is_path else path


def _machine_id() -> str:
    """Machines made from one image may have one name; systemd gives each an id. Empty where there is none."""
    try:
        return Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def options() -> list[SettingOption]:
    """An option for each setting, in the order of the tables."""
    return [option_of(each) for each in fields(Settings)]


def flags_of(settings: Settings, panel: Panel, also: Collection[str] = ()) -> Iterator[str]:
    """The flags that give another worker the settings of a panel and those named, where they are not the default."""
    for each in fields(Settings):
        value = getattr(settings, each.name)
        if value != each.default and (each.metadata["panel"] == panel or each.name in also):
            yield from (flag_name(each.name),) if value is True else (flag_name(each.name), str(value))
