"""Every option of `serve`, once: name, meaning, unit, range and default; and which values go together.

The flags, the environment variables (`LLORCH_` + the name in upper case) and the config file's keys all come from this
table, so that none can be forgotten. Refuses to know which source a value came from. Used once, before anything else
runs; frozen afterwards.
"""

import ipaddress
import os
import platform
import re
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import get_args
from urllib.parse import urlsplit

from platformdirs import user_cache_path
from rich_click import Choice, FloatRange, IntRange

from worker.config.gpu_flags import SHARES_PATTERN, wants_layers, wants_no_layers
from worker.config.option import (
    ANY_PATH,
    JsonObject,
    Origin,
    Panel,
    SettingOption,
    Text,
    Token,
    Url,
    ZmqEndpoint,
    setting,
)
from worker.engine.backend import MAX_DRAFTS, MAX_SEQ_IDS
from worker.engine.scheduler import LEAST_CELLS, most_jobs
from worker.errors import UsageError
from worker.wire.messages import PromptLookup, Scheduling, SplitMode, SwaFull

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""llama.cpp's KV cache types; the first three are not quantised."""
_TYPES = ", ".join(CACHE_TYPES)

DEFAULT_PROMPT_CHARS, DEFAULT_TOKENS_OUT, DEFAULT_TIMEOUT_SEC = 32_768, 2048, 300.0
"""The protocol's limits at `/execute`; what is beyond them was never promised to a client."""

MAX_PROMPT_CHARS = 2**21
"""The longest prompt that a frame to the engine, and its answer, have room for at any door (wire/frames.py)."""

_LEAST_BODY_BYTES = 2 * 2**20
"""The protocol's limit for a request with the default longest prompt: the rest is for a constraint."""

_LONGEST_ESCAPE_BYTES = 12
"""Of one character in JSON: beyond U+FFFF it may be written as two escapes of six bytes."""


_MAX_TEMPLATE_BYTES = 2**20
"""Forty times the longest chat template that a model is known to have. Whoever names the model by mistake is told."""

_WORKER_IDS = uuid.UUID("6d1f9d0c-3a5e-4a1c-9a3e-0c1f4d2b7e55")
"""The namespace of ids made from names (RFC 9562, version 5); any fixed one."""


DEVICE = Text(
    r"auto|cpu|metal|(cuda|vulkan)(:[0-9]{1,3})?|[0-9]{1,3}",
    "auto, cpu, cuda[:N], metal, vulkan[:N] or N, the index of a GPU; N is 0..999",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What `serve` runs with. `None` means "not given"; 0 in a size means "decide for me"."""

    model: str | None = setting(
        None,
        "A .gguf path, a name in models.toml, a file in --models-dir, or hf:org/repo[@rev][::file=name.gguf].",
        "Model",
        metavar="REF",
    )
    models_dir: Path = setting(
        None,
        "Where named models are stored and bare file names are looked up.",
        "Model",
        ANY_PATH,
        metavar="DIR",
        show_default="user cache directory",
    )
    model_ref: str | None = setting(
        None, "Reported verbatim as model_ref.", "Model", metavar="REF", show_default="--model"
    )
    draft_model: str | None = setting(
        None,
        "A smaller model with the same vocabulary, given as --model is. It guesses tokens, of which the model checks "
        "several in one step; answers stay the same.",
        "Model",
        metavar="REF",
        show_default="none",
    )
    draft_max: int = setting(
        16,
        "Most tokens that the draft model guesses for one job in one step.",
        "Model",
        IntRange(1, MAX_DRAFTS),
    )
    served_model_name: str | None = setting(
        None,
        "What /v1 calls the model.",
        "Model",
        metavar="NAME",
        show_default="--model-ref, else the name in the file",
    )
    strict_model: bool = setting(False, "Refuse a /v1 request for a model of another name.", "Model")
    catalog: Path | None = setting(
        None, "Another models.toml.", "Model", ANY_PATH, metavar="FILE", show_default="built in"
    )
    chat_template: Path | None = setting(
        None,
        "A Jinja template for conversations.",
        "Model",
        ANY_PATH,
        metavar="FILE",
        show_default="the model's own",
    )
    chat_template_kwargs: str = setting(
        "{}",
        "What the chat template is told beside each conversation; a request may say otherwise.",
        "Model",
        JsonObject(),
        metavar="JSON",
    )

    device: str | None = setting(
        None,
        "What computes.",
        "Device and memory",
        DEVICE,
        metavar="DEVICE",
        show_default="auto",
    )
    draft_device: str | None = setting(
        None,
        "What computes the draft model, as --device.",
        "Device and memory",
        DEVICE,
        metavar="DEVICE",
        show_default="--device",
    )
    gpu_layers: str = setting(
        "auto",
        "Layers on the GPU.",
        "Device and memory",
        Text(r"all|auto|[0-9]{1,4}", "all, auto or 0..9999"),
        metavar="N|all|auto",
    )
    split_mode: str = setting(
        "none",
        "Several GPUs for one model: none, layer, or row where the backend can. All of the device's backend take part.",
        "Device and memory",
        Choice(get_args(SplitMode)),
    )
    tensor_split: str | None = setting(
        None,
        "Each GPU's share with --split-mode layer or row.",
        "Device and memory",
        Text(SHARES_PATTERN, "up to 64 numbers from 0 to 999999 with commas between them, such as 3,1"),
        metavar="A,B,…",
        show_default="by free memory",
    )
    main_gpu: int | None = setting(
        None,
        "The GPU for all of the model with --split-mode none, counted among those of the device's backend.",
        "Device and memory",
        IntRange(0, 999),
        show_default="the one that --device chooses",
    )
    require_full_offload: bool = setting(
        False, "Refuse to start when a layer would stay off the device.", "Device and memory"
    )
    ctx_size: int = setting(
        0,
        "Total KV cells shared by all jobs, in tokens.",
        "Device and memory",
        IntRange(0, 2**31 - 1),
        show_default="the trained length, or 16384 if that is more; a quarter of the free memory at most",
    )
    batch_size: int = setting(
        2048, "Most tokens in one decode call (n_batch).", "Device and memory", IntRange(1, 2**20)
    )
    ubatch_size: int = setting(512, "Most tokens computed at once (n_ubatch).", "Device and memory", IntRange(1, 2**20))
    threads: int = setting(
        0, "CPU threads for generating.", "Device and memory", IntRange(0, 512), show_default="the CPU quota"
    )
    threads_batch: int = setting(
        0, "CPU threads for reading prompts.", "Device and memory", IntRange(0, 512), show_default="--threads"
    )
    cache_type_k: str = setting(
        "auto",
        "Type of the K cache; auto is f16, on a CPU bf16, which makes answers independent of the company. "
        f"[auto, {_TYPES}]",
        "Device and memory",
        Choice(("auto", *CACHE_TYPES)),
        metavar="TYPE",
    )
    cache_type_v: str = setting(
        "f16",
        f"Type of the V cache; a quantised one needs flash attention. [{_TYPES}]",
        "Device and memory",
        Choice(CACHE_TYPES),
        metavar="TYPE",
    )
    flash_attn: str = setting("auto", "Flash attention.", "Device and memory", Choice(("auto", "on", "off")))
    swa_full: str = setting(
        "auto",
        "As many KV cells in layers with a sliding window as in others, so that prompts are not computed again; "
        "auto: where memory allows it.",
        "Device and memory",
        Choice(get_args(SwaFull)),
    )
    prefix_cache_mb: str = setting(
        "auto",
        "Main memory, in MiB, for what ended jobs computed of their prompts, so that later ones need not; 0 is none.",
        "Device and memory",
        Text(r"auto|[0-9]{1,7}", "auto or 0..9999999"),
        metavar="N|auto",
        show_default="as much as the KV cache, at most half of what is left",
    )
    prefix_cache_dir: Path | None = setting(
        None,
        "A directory of your own where this is kept over restarts, as many bytes of it as in main memory.",
        "Operation",
        ANY_PATH,
        metavar="DIR",
        show_default="none: it ends with the worker",
    )

    parallel: int = setting(
        0, "Jobs generating at once.", "Jobs", IntRange(0, MAX_SEQ_IDS), show_default="8, fewer if memory demands"
    )
    max_queue: int = setting(256, "Jobs waiting for a slot; beyond it WORKER_BUSY.", "Jobs", IntRange(0, 100_000))
    max_tokens_out: int | None = setting(
        None,
        "Longest answer, in tokens: /execute refuses a larger max_tokens, /v1 cuts it.",
        "Jobs",
        IntRange(1, 2**31 - 1),
        show_default=f"{DEFAULT_TOKENS_OUT} on /execute, on /v1 what the context has room for",
    )
    max_prompt_chars: int = setting(
        DEFAULT_PROMPT_CHARS,
        "Longest prompt, in characters; on /v1 the context is the limit. The largest request body grows with it.",
        "Jobs",
        IntRange(1, MAX_PROMPT_CHARS),
    )
    max_tokens_in: int = setting(
        0, "Longest prompt, in tokens.", "Jobs", IntRange(0, 2**31 - 1), show_default="what fits the context"
    )
    itl_target_ms: int = setting(
        150,
        "How long a prompt may hold up the jobs that are generating, in milliseconds; sets the prefill chunk. 0: as "
        "long as it takes.",
        "Jobs",
        IntRange(0, 10_000),
    )
    prompt_lookup: str = setting(
        "on",
        "Guess tokens from a job's own text, and from what other jobs were answered, and check several in one step; "
        "answers stay the same. own: from its own text only.",
        "Jobs",
        Choice(get_args(PromptLookup)),
    )
    scheduling: str = setting(
        "fair",
        "Who waits when jobs need more slots or cells than there are: fair, those that have had most of the machine; "
        "first-come, the youngest.",
        "Jobs",
        Choice(get_args(Scheduling)),
    )
    deterministic: bool = setting(
        False, "Give each job the answer that it has alone, bit for bit, or do not start; slower.", "Jobs"
    )
    inference_timeout_sec: float | None = setting(
        None,
        "Longest life of a job, from its arrival.",
        "Jobs",
        FloatRange(0.001, 86_400 * 7),
        show_default=f"{DEFAULT_TIMEOUT_SEC:.0f} on /execute, none on /v1",
    )

    host: str = setting("127.0.0.1", "Address to bind.", "Network", metavar="ADDRESS")
    port: int = setting(8080, "Port to bind; 0 picks a free one.", "Network", IntRange(0, 65_535))
    callback_url: str | None = setting(
        None, "Full URL of the pool manager's ready callback.", "Network", Url(), show_default="stand-alone"
    )
    advertise_url: str | None = setting(
        None, "The uri to report to the pool manager.", "Network", Url(), show_default="http://localhost:PORT"
    )
    max_connections_per_address: int = setting(
        0,
        "Connections with requests that one client address may have at once; beyond it WORKER_BUSY. 0 is no limit. "
        "Behind a proxy all clients have the proxy's address, on a Unix socket none.",
        "Network",
        IntRange(0, 1024),
        show_default="no limit",
    )
    api_key: str | None = setting(
        None,
        "Bearer token clients must send; better given as LLORCH_API_TOKEN.",
        "Network",
        Token(),
        envvar="LLORCH_API_TOKEN",
        show_default="none: open",
    )
    cors_origin: tuple[str, ...] = setting(
        (),
        "Let web pages of this origin ask from a browser (CORS). Give the flag once for each; in the environment "
        "they have spaces or commas between them.",
        "Network",
        Origin(),
        metavar="ORIGIN",
        multiple=True,
        show_default="none",
    )
    legacy_callback_body: bool = setting(False, "Send the ready callback's three legacy fields only.", "Network")
    no_page: bool = setting(False, "Leave out the page at /, a chat with the model.", "Network")
    sse_event_names: bool = setting(False, "Write `event:` lines for old readers.", "Network")
    no_keepalive: bool = setting(
        False, "Leave out the comments that break a long silence of server-sent events.", "Network"
    )
    kv_events: str | None = setting(
        None,
        "Tell routers over ZeroMQ which blocks of prompts are computed here, as vLLM does; what a router has missed it "
        "asks for at the next port. Port 0 picks free ones.",
        "Network",
        ZmqEndpoint(),
        metavar="tcp://IP:PORT",
        show_default="nobody is told",
    )
    kv_events_topic: str | None = setting(
        None,
        "The topic of these events; llm-d asks for kv@POD@MODEL.",
        "Network",
        metavar="TOPIC",
        show_default="empty",
    )
    kv_events_public: bool = setting(
        False,
        "Let --kv-events listen on an address that other machines reach. Whoever connects there reads all prompts.",
        "Network",
    )

    worker_id: str = setting(
        None,
        "This worker's name, in what it reports, logs and counts.",
        "Operation",
        Text(r"[A-Za-z0-9_.:-]{1,256}", "1 to 256 of A-Z a-z 0-9 _ . : -"),
        metavar="ID",
        show_default="worker-<uuid>, the same after a restart on this machine with this model, host and port",
    )
    parity_report: Path | None = setting(
        None,
        "The report.json of a parity run that passed; /health then shows it, and whether it covers what runs here.",
        "Operation",
        ANY_PATH,
        metavar="FILE",
    )
    require_parity: bool = setting(
        False, "Refuse to serve anything but what the parity report covers exactly.", "Operation"
    )
    shutdown_timeout_sec: float = setting(
        25.0, "How long a drain waits for accepted jobs.", "Operation", FloatRange(0, 86_400)
    )
    watchdog_sec: float = setting(
        30.0, "Least silence of a working engine that restarts it.", "Operation", FloatRange(0.1, 86_400)
    )
    log_format: str | None = setting(
        None, "Log lines on stderr.", "Operation", Choice(("json", "pretty")), show_default="pretty on a terminal"
    )
    log_level: str = setting(
        "info",
        "The least important lines to log; debug has every line of the engine's stderr.",
        "Operation",
        Choice(("debug", "info", "warning", "error")),
    )
    access_log: bool = setting(False, "Log a line for every HTTP request when it has been answered.", "Operation")

    def __post_init__(self) -> None:
        if self.models_dir is None:
            object.__setattr__(self, "models_dir", user_cache_path("llorch-worker") / "models")
        if self.worker_id is None:
            object.__setattr__(self, "worker_id", self._own_worker_id())

    @property
    def device_or_auto(self) -> str:
        return self.device or "auto"

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
        """The largest request body: a prompt of --max-prompt-chars fits however its characters are escaped."""
        more_chars = max(0, self.max_prompt_chars - DEFAULT_PROMPT_CHARS)
        return _LEAST_BODY_BYTES + more_chars * _LONGEST_ESCAPE_BYTES

    @property
    def prefix_cache_bytes(self) -> int:
        """-1 means "decide for me"."""
        return -1 if self.prefix_cache_mb == "auto" else int(self.prefix_cache_mb) * 2**20

    @property
    def reported_model_ref(self) -> str:
        return self.model_ref or self.model or ""

    def served_name(self, name_in_file: str) -> str:
        """What `/v1` and the series under vLLM's names call the model."""
        return self.served_model_name or self.model_ref or name_in_file

    def _own_worker_id(self) -> str:
        """One id per machine, address and model, so that a restarted worker's series go on where they were.

        Nothing of a worker on any free port (--port 0) lasts, so its id is a fresh one.
        """
        if self.port == 0:
            return f"worker-{uuid.uuid4()}"
        what = (platform.node(), _machine_id(), self.host, str(self.port), self.reported_model_ref)
        name = "\0".join(what).encode(errors="backslashreplace").decode()  # a path may be no UTF-8
        return f"worker-{uuid.uuid5(_WORKER_IDS, name)}"


def _machine_id() -> str:
    """Machines made from one image may have one name; systemd gives each an id. Empty where there is none."""
    try:
        return Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def options() -> list[SettingOption]:
    """An option for each setting, in the order of the table above."""
    return [
        SettingOption(
            [flag_name(each.name)],
            **{"envvar": f"LLORCH_{each.name.upper()}", **each.metadata},
            default=each.default,
        )
        for each in fields(Settings)
    ]


def flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def flags_of(settings: Settings, panel: Panel, also: Collection[str] = ()) -> Iterator[str]:
    """The flags that give another worker the settings of a panel and those named, where they are not the default."""
    for each in fields(Settings):
        value = getattr(settings, each.name)
        if value != each.default and (each.metadata["panel"] == panel or each.name in also):
            yield from (flag_name(each.name),) if value is True else (flag_name(each.name), str(value))


def check(settings: Settings, given: Collection[str] = ()) -> Settings:
    """The settings again, when they go together. `given` are the names of those that the user gave.

    Raises: UsageError with those that do not, and what would.
    """
    for contradiction in _contradictions(settings, given):
        raise UsageError(contradiction)
    return settings


def _contradictions(settings: Settings, given: Collection[str]) -> Iterator[str]:
    parallel, ctx_size = settings.parallel, settings.ctx_size
    if parallel and ctx_size and parallel > most_jobs(ctx_size):
        yield (
            f"--parallel {parallel} needs {LEAST_CELLS} cells for each job, and --ctx-size is {ctx_size}: the smallest "
            f"--ctx-size for {parallel} jobs is {parallel * LEAST_CELLS}, the largest --parallel for {ctx_size} cells "
            f"is {most_jobs(ctx_size)}"
        )
    if "ubatch_size" in given and settings.ubatch_size > settings.batch_size:
        yield (
            f"--ubatch-size {settings.ubatch_size} is more than --batch-size {settings.batch_size}, of which it is a "
            "part: lower it, or raise --batch-size"
        )
    if settings.cache_type_v not in CACHE_TYPES[:3] and settings.flash_attn == "off":
        yield (
            f"--cache-type-v {settings.cache_type_v} is quantised and needs flash attention: "
            "use --flash-attn on or auto, or --cache-type-v f16"
        )
    if settings.draft_model is not None and settings.deterministic:
        yield "--draft-model and --deterministic do not go together, because the latter has no drafts: leave one out"
    if settings.require_parity and settings.parity_report is None:
        yield "--require-parity needs a report: give one with --parity-report FILE, or leave it out"
    yield from _of_devices(settings)


def _of_devices(settings: Settings) -> Iterator[str]:
    device, layers = settings.device_or_auto, settings.gpu_layers
    split, main_gpu = settings.split_mode, settings.main_gpu
    if device == "cpu" and wants_layers(layers):
        yield f"--gpu-layers {layers} needs a GPU: leave it out, or --device cpu"
    if device != "cpu" and wants_no_layers(layers):
        if split != "none":
            yield f"--split-mode {split} needs layers on a GPU: leave it out, or --gpu-layers {layers}"
        if settings.require_full_offload:
            yield f"--require-full-offload needs layers on a GPU: leave it out, or --gpu-layers {layers}"
    if split == "none" and settings.tensor_split is not None:
        yield "--tensor-split needs --split-mode layer or row: with none one GPU has the whole model"
    if split == "none" and main_gpu is not None and re.search(r"[0-9]|cpu", device):
        yield f"--main-gpu {main_gpu} does not go with --device {device}: each chooses a device"
    if split != "none" and device == "cpu":
        yield f"--split-mode {split} needs GPUs: leave it out, or --device cpu"
    if split != "none" and main_gpu is not None:
        yield f"--main-gpu {main_gpu} needs --split-mode none: otherwise all GPUs have a part"
    yield from _exposed(settings)


def _exposed(settings: Settings) -> Iterator[str]:
    """What shows the prompts to other machines."""
    if settings.kv_events is None or settings.kv_events_public:
        return
    if not ipaddress.ip_address(urlsplit(settings.kv_events).hostname or "").is_loopback:
        yield (
            f"--kv-events {settings.kv_events} can be reached from other machines, and its events have the tokens of "
            "all prompts: use tcp://127.0.0.1:PORT, or add --kv-events-public if whoever can connect may read them"
        )


def read_chat_template(settings: Settings) -> str | None:
    """The text of --chat-template, or None without one. Raises: UsageError for a file that cannot be a template."""
    path = settings.chat_template
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            found = file.read(_MAX_TEMPLATE_BYTES + 1)
        if len(found) > _MAX_TEMPLATE_BYTES:
            raise UsageError(
                f"--chat-template {path} is no chat template: it has more than {_MAX_TEMPLATE_BYTES} bytes"
            )
        text = found.decode()
    except OSError as error:
        raise UsageError(f"--chat-template {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--chat-template {path} is not UTF-8: byte {error.start} is no character") from error
    if not text.strip():
        raise UsageError(f"--chat-template {path} is empty: leave it out for the model's own template")
    return text


def environment() -> dict[str, str]:
    """The process's environment; kept here so that no other module reads it."""
    return dict(os.environ)
