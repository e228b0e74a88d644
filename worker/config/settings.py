"""Every option of `serve`, once: name, meaning, unit, range and default (contradictions.py: which values go together).

The flags, the environment variables (`LLORCH_` + the name in upper case) and the config file's keys all come from this
table, so that none can be forgotten. Used once, before anything else runs; frozen afterwards.
"""

import os
import platform
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, get_args

from platformdirs import user_cache_path
from rich_click import Choice, FloatRange, IntRange

from worker.config.gpu_flags import SHARES_PATTERN
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
from worker.config.typed_name import typed_name
from worker.errors import UsageError
from worker.limits import MAX_DRAFTS
from worker.observe.log_lines import Format, Level
from worker.upstream.numbers import CACHE_TYPE_IDS, MAX_SEQ_IDS
from worker.wire.load import BatchInvariant, FlashAttn, Kernels, PromptLookup, Scheduling, SplitMode, SwaFull

CACHE_TYPES = tuple(CACHE_TYPE_IDS)
"""llama.cpp's KV cache types; the first three are not quantised."""
_TYPES = ", ".join(CACHE_TYPES)

DEFAULT_PROMPT_CHARS, DEFAULT_TOKENS_OUT, DEFAULT_TIMEOUT_SEC = 32_768, 2048, 300.0
"""The protocol's limits at `/execute`; what is beyond them was never promised to a client."""

MAX_PROMPT_CHARS = 2**21
"""The longest prompt that a frame to the engine, and its answer, have room for in any API (wire/frames.py)."""

_MIN_BODY_BYTES = 2 * 2**20
"""The protocol's limit for a request with the default longest prompt: the rest is for a constraint."""

_LONGEST_ESCAPE_BYTES = 12
"""The longest spelling of one character in JSON: beyond U+FFFF it may be written as two escapes of six bytes."""


_MAX_TEMPLATE_BYTES = 2**20
"""The largest chat template; the longest that a model is known to have is forty times shorter. A user who gives the
model file by mistake gets an error."""

ReasoningField = Literal["reasoning_content", "reasoning", "both"]
"""The fields of a chat completion that may have the reasoning."""

_API_TOKEN = ("LLORCH_API_TOKEN", "LLORCH_API_KEY")
"""The variables that may hold the token of clients."""

_WORKER_IDS = uuid.UUID("6d1f9d0c-3a5e-4a1c-9a3e-0c1f4d2b7e55")
"""The namespace of ids made from names (RFC 9562, version 5); any fixed one."""


DEVICE = Text(
    r"auto|cpu|metal|(cuda|vulkan)(:[0-9]{1,3})?|[0-9]{1,3}",
    "auto, cpu, cuda[:N], metal, vulkan[:N] or N, the index of a GPU; N is 0..999",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of `serve`. `None` means "not given"; 0 in a size means "decide for me"."""

    model: str | None = setting(
        None,
        "Serve this model: a .gguf path, a name in models.toml, a file in --models-dir, or a repository of the Hugging "
        "Face hub as org/repo:QUANT or hf:org/repo[@rev][:QUANT or ::file=name.gguf].",
        "Model",
        metavar="REF",
        also=("-m",),
    )
    models_dir: Path = setting(
        None,
        "Store downloaded models in DIR, and look up bare file names there.",
        "Model",
        ANY_PATH,
        metavar="DIR",
        show_default="user cache directory",
    )
    model_ref: str | None = setting(
        None,
        "Report this name as model_ref in /health, the metrics, the log and the ready callback.",
        "Model",
        metavar="REF",
        show_default="--model",
    )
    draft_model: str | None = setting(
        None,
        "Draft tokens with this smaller model, which must have the same vocabulary; the model verifies several drafts "
        "in one step. REF has the forms of --model. Drafts change the speed; docs/determinism.md says when they can "
        "change an answer.",
        "Model",
        metavar="REF",
        show_default="none",
    )
    draft_max: int = setting(
        16,
        "Draft at most N tokens for one job in one step, with --draft-model.",
        "Model",
        IntRange(1, MAX_DRAFTS),
    )
    mtp: bool = setting(
        False,
        "Draft tokens with the model's own next-token head (MTP), where its file has one; --draft-model cannot be used "
        "as well. The head takes memory. It drafts only in those steps where that is expected to pay.",
        "Model",
    )
    served_model_name: str | None = setting(
        None,
        "Call the model NAME on /v1 and in the metrics with vLLM's names.",
        "Model",
        metavar="NAME",
        show_default="--model-ref, else --model as typed, without its folders or hf:",
    )
    strict_model: bool = setting(
        False, "Answer 404 to a /v1 request that names another model. By default any name is accepted.", "Model"
    )
    keep_billing_block: bool = setting(
        False,
        "Keep the block x-anthropic-billing-header of Claude Code's system prompt. It differs in each conversation, so "
        "no two conversations share a prefix then.",
        "Model",
    )
    no_fenced_calls: bool = setting(
        False,
        "Do not read a fenced JSON object as a call of an offered tool. Models such as Qwen2.5-Coder write calls like "
        "this; they count if the model was sure of the tool.",
        "Model",
    )
    reasoning_field: ReasoningField = setting(
        "reasoning_content",
        "Send the reasoning of chat completions in this field. Some clients show both fields, so that each thought "
        "appears twice with both.",
        "Model",
        Choice(get_args(ReasoningField)),
    )
    catalog: Path | None = setting(
        None,
        "Use this model catalogue (a models.toml) instead of the built-in one.",
        "Model",
        ANY_PATH,
        metavar="FILE",
        show_default="built in",
    )
    chat_template: Path | None = setting(
        None,
        "Use this Jinja file as the chat template.",
        "Model",
        ANY_PATH,
        metavar="FILE",
        show_default="the model's own",
    )
    chat_template_kwargs: str = setting(
        "{}",
        "Pass these variables to the chat template, as a JSON object. A request can override them key by key.",
        "Model",
        JsonObject(),
        metavar="JSON",
    )

    device: str | None = setting(
        None,
        "Run the model on this device; auto takes the first one with enough memory, GPUs before the CPU.",
        "Device and memory",
        DEVICE,
        metavar="DEVICE",
        show_default="auto",
    )
    draft_device: str | None = setting(
        None,
        "Run the draft model on this device; it takes the values of --device.",
        "Device and memory",
        DEVICE,
        metavar="DEVICE",
        show_default="--device",
    )
    gpu_layers: str = setting(
        "auto",
        "Put N of the model's layers on the GPU; auto puts as many as fit, 0 puts none.",
        "Device and memory",
        Text(r"all|auto|[0-9]{1,4}", "all, auto or 0..9999"),
        metavar="N|all|auto",
        also=("-ngl",),
    )
    split_mode: SplitMode = setting(
        "none",
        "Split the model over all GPUs of the device's backend: by layer, or by row if the backend supports it. none "
        "uses one GPU and leaves the others idle.",
        "Device and memory",
        Choice(get_args(SplitMode)),
    )
    tensor_split: str | None = setting(
        None,
        "Give each GPU this share of the model, with --split-mode layer or row.",
        "Device and memory",
        Text(SHARES_PATTERN, "up to 64 numbers from 0 to 999999 with commas between them, such as 3,1"),
        metavar="A,B,…",
        show_default="by free memory",
    )
    main_gpu: int | None = setting(
        None,
        "Put the whole model on GPU N, with --split-mode none. N counts the GPUs of the device's backend, from 0.",
        "Device and memory",
        IntRange(0, 999),
        show_default="chosen by --device",
    )
    require_full_offload: bool = setting(
        False, "Refuse to start if any layer would not be on the device.", "Device and memory"
    )
    ctx_size: int = setting(
        0,
        "Share N tokens of KV cache among all jobs. It is not divided by --parallel: one job may use all of it, up to "
        "the model's trained length. 0 chooses by free memory.",
        "Device and memory",
        IntRange(0, 2**31 - 1),
        show_default="the trained length, or 16384 if that is more; a quarter of the free memory at most",
        also=("-c",),
    )
    batch_size: int = setting(
        2048,
        "Submit at most N tokens in one decode call (n_batch).",
        "Device and memory",
        IntRange(1, 2**20),
        also=("-b",),
    )
    ubatch_size: int = setting(
        0,
        "Compute at most N tokens at once (n_ubatch). 0 means 512; on a GPU up to 2048, if memory allows it and a "
        "token takes no longer.",
        "Device and memory",
        IntRange(0, 2**20),
        show_default="512, on a GPU up to 2048",
    )
    threads: int = setting(
        0,
        "Generate with N CPU threads; 0 means the CPU quota.",
        "Device and memory",
        IntRange(0, 512),
        show_default="the CPU quota",
        also=("-t",),
    )
    threads_batch: int = setting(
        0,
        "Process prompts with N CPU threads; 0 means --threads.",
        "Device and memory",
        IntRange(0, 512),
        show_default="--threads",
    )
    cache_type_k: str = setting(
        "auto",
        "Store the K cache as TYPE; auto is f16, or bf16 if --batch-invariant on or --deterministic needs it. "
        f"[auto, {_TYPES}]",
        "Device and memory",
        Choice(("auto", *CACHE_TYPES)),
        metavar="TYPE",
    )
    cache_type_v: str = setting(
        "f16",
        f"Store the V cache as TYPE; a quantised one needs flash attention. [{_TYPES}]",
        "Device and memory",
        Choice(CACHE_TYPES),
        metavar="TYPE",
    )
    flash_attn: FlashAttn = setting(
        "auto",
        "Compute attention with llama.cpp's flash attention; auto uses it if the device can.",
        "Device and memory",
        Choice(get_args(FlashAttn)),
        also=("-fa",),
    )
    kernels: Kernels = setting(
        "auto",
        "Compute products of quantised matrices on a CPU with the worker's own kernels (ours) or llama.cpp's (stock). "
        "auto: the faster ones for each type, as the first start measures and later ones remember.",
        "Device and memory",
        Choice(get_args(Kernels)),
    )
    no_repack: bool = setting(
        False,
        "Compute with the weights as they lie in the file, which stays mapped and which workers share. Otherwise a CPU "
        "gets them in an order that it reads faster, in the worker's own memory.",
        "Device and memory",
        also=("-nr",),
    )
    swa_full: SwaFull = setting(
        "auto",
        "Keep as many KV cells in layers with a sliding window as in other layers, so that cached prefixes can be "
        "reused; auto does so if memory allows it.",
        "Device and memory",
        Choice(get_args(SwaFull)),
    )
    prefix_cache_mb: str = setting(
        "auto",
        "Keep up to N MiB of the KV cache of finished jobs in main memory, so that later prompts with the same prefix "
        "need not compute it again; 0 keeps none.",
        "Device and memory",
        Text(r"auto|[0-9]{1,7}", "auto or 0..9999999"),
        metavar="N|auto",
        show_default="as much as the KV cache, at most half of what is left",
    )
    prefix_cache_dir: Path | None = setting(
        None,
        "Keep the prefix cache in DIR across restarts, up to --prefix-cache-mb MiB of files. DIR must belong to the "
        "worker's user.",
        "Operation",
        ANY_PATH,
        metavar="DIR",
        show_default="none: it ends with the worker",
    )

    parallel: int = setting(
        0,
        "Generate for at most N jobs at once; 0 chooses by free memory.",
        "Jobs",
        IntRange(0, MAX_SEQ_IDS),
        show_default="8, or fewer if memory is short",
        also=("-np",),
    )
    max_queue: int = setting(
        256, "Let at most N jobs wait for a slot; further ones get 503 WORKER_BUSY.", "Jobs", IntRange(0, 100_000)
    )
    max_tokens_out: int | None = setting(
        None,
        "Limit an answer to N tokens: /execute refuses a larger max_tokens, /v1 cuts it.",
        "Jobs",
        IntRange(1, 2**31 - 1),
        show_default=f"{DEFAULT_TOKENS_OUT} on /execute, on /v1 what the context has room for",
    )
    max_prompt_chars: int = setting(
        DEFAULT_PROMPT_CHARS,
        "Refuse a prompt of more than N characters; on /v1 the context is the limit. The largest request body grows "
        "with it.",
        "Jobs",
        IntRange(1, MAX_PROMPT_CHARS),
    )
    max_body_mb: int = setting(
        64,
        "Refuse a request body of more than N MiB on /v1. Pictures and files that the model does not read may fill it; "
        "the rest has the limit that --max-prompt-chars sets.",
        "Jobs",
        IntRange(1, 4096),
    )
    max_tokens_in: int = setting(
        0,
        "Refuse a prompt of more than N tokens; 0 sets no limit but the context.",
        "Jobs",
        IntRange(0, 2**31 - 1),
        show_default="what fits the context",
    )
    itl_target_ms: int = setting(
        150,
        "Aim at N milliseconds between two tokens of running jobs while a prompt is processed, by splitting prompts "
        "into small chunks; 0 processes prompts as fast as possible.",
        "Jobs",
        IntRange(0, 10_000),
    )
    prompt_lookup: PromptLookup = setting(
        "on",
        "Draft tokens by looking them up, and verify several in one step. on: in the job's own text and in the answers "
        "of other jobs; own: in the job's own text only; off: never. Drafts change the speed; docs/determinism.md "
        "says when they can change an answer.",
        "Jobs",
        Choice(get_args(PromptLookup)),
    )
    scheduling: Scheduling = setting(
        "fair",
        "Choose which jobs wait when slots or KV cells run out: fair, those that have used the most compute; "
        "first-come, the newest.",
        "Jobs",
        Choice(get_args(Scheduling)),
    )
    deterministic: bool = setting(
        False,
        "Give each job the same answer under load as alone, bit for bit, or refuse to start. This is slower; "
        "docs/determinism.md has the cost.",
        "Jobs",
    )
    batch_invariant: BatchInvariant = setting(
        "auto",
        "Compute each job's logits so that they do not depend on other jobs. on: always, or refuse to start; off: no "
        "guarantee, with llama.cpp's fastest kernels; auto: if it costs nothing.",
        "Jobs",
        Choice(get_args(BatchInvariant)),
    )
    inference_timeout_sec: float | None = setting(
        None,
        "End a job this long after its arrival.",
        "Jobs",
        FloatRange(0.001, 86_400 * 7),
        show_default=f"{DEFAULT_TIMEOUT_SEC:.0f} on /execute, none on /v1",
    )

    host: str = setting("127.0.0.1", "Listen on this address.", "Network", metavar="ADDRESS")
    port: int = setting(8080, "Listen on port N; 0 picks a free one.", "Network", IntRange(0, 65_535))
    callback_url: str | None = setting(
        None,
        "Announce the ready worker to the pool manager at this full URL.",
        "Network",
        Url(),
        show_default="stand-alone",
    )
    advertise_url: str | None = setting(
        None,
        "Report this URL to the pool manager as the worker's uri.",
        "Network",
        Url(),
        show_default="http://localhost:PORT",
    )
    max_connections_per_address: int = setting(
        0,
        "Accept at most N concurrent requests from one client address; further ones get 503 WORKER_BUSY. Behind a "
        "proxy all clients share its address. 0 sets no limit.",
        "Network",
        IntRange(0, 1024),
        show_default="no limit",
    )
    api_key: str | None = setting(
        None,
        "Require this bearer token from clients. Prefer LLORCH_API_TOKEN or LLORCH_API_KEY: process lists show a flag "
        "until the worker has overwritten it.",
        "Network",
        Token(),
        envvar=_API_TOKEN[0],
        other_envvar=_API_TOKEN[1],
        show_default="none: open",
    )
    cors_origin: tuple[str, ...] = setting(
        (),
        "Allow browser requests from web pages of this origin (CORS). Can be repeated; in the environment, "
        "separate several with spaces or commas.",
        "Network",
        Origin(),
        metavar="ORIGIN",
        multiple=True,
        show_default="none",
    )
    allowed_host: tuple[str, ...] = setting(
        (),
        "Answer requests for this host name, too. A worker without a token answers only addresses, local names and its "
        "own. Can be repeated; in the environment, separate several with spaces or commas.",
        "Network",
        Text(r"(?a)\*|(\*\.)?\w([\w.-]*\w)?", "a name without a port, *.NAME, or * for any host"),
        metavar="NAME",
        multiple=True,
        show_default="none",
    )
    legacy_callback_body: bool = setting(False, "Send only the three legacy fields in the ready callback.", "Network")
    no_page: bool = setting(False, "Do not serve the chat page at /.", "Network")
    sse_event_names: bool = setting(False, "Write `event:` lines into event streams, for old clients.", "Network")
    no_keepalive: bool = setting(False, "Do not send comments while an event stream is silent for long.", "Network")
    kv_events: str | None = setting(
        None,
        "Publish over ZeroMQ which blocks of prompts are in this worker's KV cache, in vLLM's format, for routers. The "
        "next port replays missed events. Port 0 picks free ports.",
        "Network",
        ZmqEndpoint(),
        metavar="tcp://IP:PORT",
        show_default="not published",
    )
    kv_events_topic: str | None = setting(
        None,
        "Publish KV events under TOPIC; llm-d expects kv@POD@MODEL.",
        "Network",
        metavar="TOPIC",
        show_default="empty",
    )
    kv_events_public: bool = setting(
        False,
        "Let --kv-events listen on an address that other machines reach. Anyone who connects there reads all prompts.",
        "Network",
    )

    worker_id: str = setting(
        None,
        "Name this worker in reports, log lines and metrics.",
        "Operation",
        Text(r"[A-Za-z0-9_.:-]{1,256}", "1 to 256 of A-Z a-z 0-9 _ . : -"),
        metavar="ID",
        show_default="worker-<uuid>, the same after a restart on this machine with this model, host and port",
    )
    parity_report: Path | None = setting(
        None,
        "Show this report.json of a passed parity run in /health, and whether it covers the model as it runs here.",
        "Operation",
        ANY_PATH,
        metavar="FILE",
    )
    require_parity: bool = setting(
        False, "Refuse to start if --parity-report does not cover exactly what would run here.", "Operation"
    )
    shutdown_timeout_sec: float = setting(
        25.0,
        "Wait this long for accepted jobs when the worker stops; 0 ends them at once.",
        "Operation",
        FloatRange(0, 86_400),
    )
    watchdog_sec: float = setting(
        30.0,
        "Restart the engine if it reports nothing for this long while it works; slow steps get longer.",
        "Operation",
        FloatRange(0.1, 86_400),
    )
    log_format: Format | None = setting(
        None,
        "Write log lines on stderr as JSON or as readable text.",
        "Operation",
        Choice(get_args(Format)),
        show_default="pretty on a terminal",
    )
    log_level: Level = setting(
        "info",
        "Write log lines of this level and above; debug includes every line of the engine's stderr.",
        "Operation",
        Choice(get_args(Level)),
    )
    access_log: bool = setting(False, "Log a line for every HTTP request once it has been answered.", "Operation")

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
        """The largest request body, or the text in it: a prompt of --max-prompt-chars fits, however it is escaped."""
        more_chars = max(0, self.max_prompt_chars - DEFAULT_PROMPT_CHARS)
        return _MIN_BODY_BYTES + more_chars * _LONGEST_ESCAPE_BYTES

    @property
    def max_whole_bytes(self) -> int:
        """The largest request body on /v1 with its payloads."""
        return self.max_body_mb * 2**20

    @property
    def prefix_cache_bytes(self) -> int:
        """-1 means "decide for me"."""
        return -1 if self.prefix_cache_mb == "auto" else int(self.prefix_cache_mb) * 2**20

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
                f"--chat-template {path} has more than {_MAX_TEMPLATE_BYTES} bytes: is it a chat template?"
            )
        text = found.decode()
    except OSError as error:
        raise UsageError(f"--chat-template {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--chat-template {path} is not UTF-8 at byte {error.start}: save it as UTF-8") from error
    if not text.strip():
        raise UsageError(f"--chat-template {path} is empty: remove the flag to use the model's own template")
    return text


def environment() -> dict[str, str]:
    """The process's environment; kept here so that no other module reads it."""
    return dict(os.environ)


def environment_for_downloads() -> dict[str, str]:
    """The environment of a program that fetches a model: this process's, without the token of its clients."""
    return {name: value for name, value in environment().items() if name not in _API_TOKEN}
