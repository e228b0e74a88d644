"""The settings of a model and its jobs, once each, and the engine's first frame, which has them as they are.

Those of the network and of the process are in settings.py. Light to import.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

import msgspec

from worker.config.row import Form, JsonText, of_devices, of_jobs, of_model, of_operation
from worker.limits import MAX_DRAFTS
from worker.models.upstream.numbers import CACHE_TYPE_IDS, MAX_SEQ_IDS
from worker.wire.load import Loaded
from worker.wire.messages import Inbound

Scheduling = Literal["fair", "first-come"]
SwaFull = Literal["auto", "on", "off"]
"""auto means on if that costs neither cells, jobs nor layers on a GPU."""
FlashAttn = Literal["auto", "on", "off"]
PromptLookup = Literal["on", "own", "off"]
BatchInvariant = Literal["auto", "on", "off"]
Kernels = Literal["auto", "ours", "stock"]
SplitMode = Literal["none", "layer", "row"]
"""llama.cpp's words: all layers on one GPU; whole layers over all GPUs; each layer's rows over all GPUs."""
ReasoningField = Literal["reasoning_content", "reasoning", "both"]

CACHE_TYPES = tuple(CACHE_TYPE_IDS)
"""llama.cpp's KV cache types; the first three are not quantised."""
_TYPES = ", ".join(CACHE_TYPES)

DEFAULT_PROMPT_CHARS, DEFAULT_TOKENS_OUT, DEFAULT_TIMEOUT_SEC = 32_768, 2048, 300.0
"""The protocol's limits at `/execute`; what is beyond them was never promised to a client."""

MAX_PROMPT_CHARS = 2**21
"""The longest prompt that a frame to the engine, and its answer, have room for in any API (wire/encoding.py)."""

DEVICE = Form(
    r"auto|cpu|metal|(cuda|vulkan)(:[0-9]{1,3})?|[0-9]{1,3}",
    "auto, cpu, cuda[:N], metal, vulkan[:N] or N, the index of a GPU; N is 0..999",
)
_SHARES = Form(
    r"[0-9]{1,6}(\.[0-9]{1,6})?(,[0-9]{1,6}(\.[0-9]{1,6})?){0,63}",
    "up to 64 numbers from 0 to 999999 with commas between them, such as 3,1",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """`None` means "not given"; 0 in a size means "decide for me"."""

    model: str | None = of_model(
        None,
        "Serve this model: a .gguf path, a name in models.toml, a file in --models-dir, or a repository of the Hugging "
        "Face hub as org/repo:QUANT or hf:org/repo[@rev][:QUANT or ::file=name.gguf].",
        metavar="REF",
        also=("-m",),
    )
    models_dir: Path = of_model(
        None,
        "Store downloaded models in DIR, and look up bare file names there.",
        metavar="DIR",
        show_default="user cache directory",
    )
    model_ref: str | None = of_model(
        None,
        "Report this name as model_ref in /health, the metrics, the log and the ready callback.",
        metavar="REF",
        show_default="--model",
    )
    draft_model: str | None = of_model(
        None,
        "Draft tokens with this smaller model, which must have the same vocabulary; the model verifies several drafts "
        "in one step. REF has the forms of --model. Drafts change the speed; docs/determinism.md says when they can "
        "change an answer.",
        metavar="REF",
        show_default="none",
    )
    draft_max: int = of_model(
        16, "Draft at most N tokens for one job in one step, with --draft-model.", (1, MAX_DRAFTS)
    )
    mtp: bool = of_model(
        False,
        "Draft tokens with the model's own next-token head (MTP), where its file has one; --draft-model cannot be used "
        "as well. The head takes memory. It drafts only in those steps where that is expected to pay.",
    )
    served_model_name: str | None = of_model(
        None,
        "Call the model NAME on /v1 and in the metrics with vLLM's names.",
        metavar="NAME",
        show_default="--model-ref, else --model as typed, without its folders or hf:",
    )
    strict_model: bool = of_model(
        False, "Answer 404 to a /v1 request that names another model. By default any name is accepted."
    )
    keep_billing_block: bool = of_model(
        False,
        "Keep the block x-anthropic-billing-header of Claude Code's system prompt. It differs in each conversation, so "
        "no two conversations share a prefix then.",
    )
    no_fenced_calls: bool = of_model(
        False,
        "Do not read a fenced JSON object as a call of an offered tool. Models such as Qwen2.5-Coder write calls like "
        "this; they count if the model was sure of the tool.",
    )
    reasoning_field: ReasoningField = of_model(
        "reasoning_content",
        "Send the reasoning of chat completions in this field. Some clients show both fields, so that each thought "
        "appears twice with both.",
    )
    catalog: Path | None = of_model(
        None,
        "Use this model catalogue (a models.toml) instead of the built-in one.",
        metavar="FILE",
        show_default="built in",
    )
    chat_template: Path | None = of_model(
        None, "Use this Jinja file as the chat template.", metavar="FILE", show_default="the model's own"
    )
    chat_template_kwargs: JsonText = of_model(
        "{}",
        "Pass these variables to the chat template, as a JSON object. A request can override them key by key.",
        metavar="JSON",
    )

    device: str = of_devices(
        "auto",
        "Run the model on this device; auto takes the first one with enough memory, GPUs before the CPU.",
        DEVICE,
        metavar="DEVICE",
        show_default="auto",
    )
    draft_device: str | None = of_devices(
        None,
        "Run the draft model on this device; it takes the values of --device.",
        DEVICE,
        metavar="DEVICE",
        show_default="--device",
    )
    gpu_layers: str = of_devices(
        "auto",
        "Put N of the model's layers on the GPU; auto puts as many as fit, 0 puts none.",
        Form(r"all|auto|[0-9]{1,4}", "all, auto or 0..9999"),
        metavar="N|all|auto",
        also=("-ngl",),
    )
    split_mode: SplitMode = of_devices(
        "none",
        "Split the model over all GPUs of the device's backend: by layer, or by row if the backend supports it. none "
        "uses one GPU and leaves the others idle.",
    )
    tensor_split: str | None = of_devices(
        None,
        "Give each GPU this share of the model, with --split-mode layer or row.",
        _SHARES,
        metavar="A,B,…",
        show_default="by free memory",
    )
    main_gpu: int | None = of_devices(
        None,
        "Put the whole model on GPU N, with --split-mode none. N counts the GPUs of the device's backend, from 0.",
        (0, 999),
        show_default="chosen by --device",
    )
    require_full_offload: bool = of_devices(False, "Refuse to start if any layer would not be on the device.")
    ctx_size: int = of_devices(
        0,
        "Share N tokens of KV cache among all jobs. It is not divided by --parallel: one job may use all of it, up to "
        "the model's trained length. 0 chooses by free memory.",
        (0, 2**31 - 1),
        show_default="the trained length, or 16384 if that is more; a quarter of the free memory at most",
        also=("-c",),
    )
    batch_size: int = of_devices(
        2048, "Submit at most N tokens in one decode call (n_batch).", (1, 2**20), also=("-b",)
    )
    ubatch_size: int = of_devices(
        0,
        "Compute at most N tokens at once (n_ubatch). 0 means 512; on a GPU up to 2048, if memory allows it and a "
        "token takes no longer.",
        (0, 2**20),
        show_default="512, on a GPU up to 2048",
    )
    threads: int = of_devices(
        0, "Generate with N CPU threads; 0 means the CPU quota.", (0, 512), show_default="the CPU quota", also=("-t",)
    )
    threads_batch: int = of_devices(
        0, "Process prompts with N CPU threads; 0 means --threads.", (0, 512), show_default="--threads"
    )
    cache_type_k: str = of_devices(
        "auto",
        "Store the K cache as TYPE; auto is f16, or bf16 if --batch-invariant on or --deterministic needs it. "
        f"[auto, {_TYPES}]",
        ("auto", *CACHE_TYPES),
        metavar="TYPE",
    )
    cache_type_v: str = of_devices(
        "f16",
        f"Store the V cache as TYPE; a quantised one needs flash attention. [{_TYPES}]",
        CACHE_TYPES,
        metavar="TYPE",
    )
    flash_attn: FlashAttn = of_devices(
        "auto", "Compute attention with llama.cpp's flash attention; auto uses it if the device can.", also=("-fa",)
    )
    kernels: Kernels = of_devices(
        "auto",
        "Compute products of quantised matrices on a CPU with the worker's own kernels (ours) or llama.cpp's (stock). "
        "auto: the faster ones for each type, as the first start measures and later ones remember.",
    )
    no_repack: bool = of_devices(
        False,
        "Compute with the weights as they lie in the file, which stays mapped and which workers share. Otherwise a CPU "
        "gets them in an order that it reads faster, in the worker's own memory.",
        also=("-nr",),
    )
    swa_full: SwaFull = of_devices(
        "auto",
        "Keep as many KV cells in layers with a sliding window as in other layers, so that cached prefixes can be "
        "reused; auto does so if memory allows it.",
    )
    prefix_cache_mb: str = of_devices(
        "auto",
        "Keep up to N MiB of the KV cache of finished jobs in main memory, so that later prompts with the same prefix "
        "need not compute it again; 0 keeps none.",
        Form(r"auto|[0-9]{1,7}", "auto or 0..9999999"),
        metavar="N|auto",
        show_default="as much as the KV cache, at most half of what is left",
    )
    prefix_cache_dir: Path | None = of_operation(
        None,
        "Keep the prefix cache in DIR across restarts, up to --prefix-cache-mb MiB of files. DIR must belong to the "
        "worker's user.",
        metavar="DIR",
        show_default="none: it ends with the worker",
    )

    parallel: int = of_jobs(
        0,
        "Generate for at most N jobs at once; 0 chooses by free memory.",
        (0, MAX_SEQ_IDS),
        show_default="8, or fewer if memory is short",
        also=("-np",),
    )
    max_queue: int = of_jobs(256, "Let at most N jobs wait for a slot; further ones get 503 WORKER_BUSY.", (0, 100_000))
    max_tokens_out: int | None = of_jobs(
        None,
        "Limit an answer to N tokens: /execute refuses a larger max_tokens, /v1 cuts it.",
        (1, 2**31 - 1),
        show_default=f"{DEFAULT_TOKENS_OUT} on /execute, on /v1 what the context has room for",
    )
    max_prompt_chars: int = of_jobs(
        DEFAULT_PROMPT_CHARS,
        "Refuse a prompt of more than N characters; on /v1 the context is the limit. The largest request body grows "
        "with it.",
        (1, MAX_PROMPT_CHARS),
    )
    max_body_mb: int = of_jobs(
        64,
        "Refuse a request body of more than N MiB on /v1. Pictures and files that the model does not read may fill it; "
        "the rest has the limit that --max-prompt-chars sets.",
        (1, 4096),
    )
    max_tokens_in: int = of_jobs(
        0,
        "Refuse a prompt of more than N tokens; 0 sets no limit but the context.",
        (0, 2**31 - 1),
        show_default="what fits the context",
    )
    itl_target_ms: int = of_jobs(
        150,
        "Aim at N milliseconds between two tokens of running jobs while a prompt is processed, by splitting prompts "
        "into small chunks; 0 processes prompts as fast as possible.",
        (0, 10_000),
    )
    prompt_lookup: PromptLookup = of_jobs(
        "on",
        "Draft tokens by looking them up, and verify several in one step. on: in the job's own text and in the answers "
        "of other jobs; own: in the job's own text only; off: never. Drafts change the speed; docs/determinism.md "
        "says when they can change an answer.",
    )
    scheduling: Scheduling = of_jobs(
        "fair",
        "Choose which jobs wait when slots or KV cells run out: fair, those that have used the most compute; "
        "first-come, the newest.",
    )
    deterministic: bool = of_jobs(
        False,
        "Give each job the same answer under load as alone, bit for bit, or refuse to start. This is slower; "
        "docs/determinism.md has the cost.",
    )
    batch_invariant: BatchInvariant = of_jobs(
        "auto",
        "Compute each job's logits so that they do not depend on other jobs. on: always, or refuse to start; off: no "
        "guarantee, with llama.cpp's fastest kernels; auto: if it costs nothing.",
    )
    inference_timeout_sec: float | None = of_jobs(
        None,
        "End a job this long after its arrival.",
        (0.001, 86_400 * 7),
        show_default=f"{DEFAULT_TIMEOUT_SEC:.0f} on /execute, none on /v1",
    )

    def __post_init__(self) -> None:
        if self.models_dir is None:
            from platformdirs import user_cache_path  # noqa: PLC0415 - the engine is given the directory

            object.__setattr__(self, "models_dir", user_cache_path("llorch-worker") / "models")

    @property
    def wants_layers(self) -> bool:
        """True if --gpu-layers asks for layers on a GPU, so that there must be one."""
        return self.gpu_layers == "all" or (self.gpu_layers.isdecimal() and int(self.gpu_layers) > 0)

    @property
    def wants_no_layers(self) -> bool:
        """True if --gpu-layers says that no layer may be on a GPU."""
        return self.gpu_layers.isdecimal() and int(self.gpu_layers) == 0

    @property
    def device_of_draft(self) -> str:
        """The device of a draft model, in the words of --device: without one of its own, where the model may go."""
        return self.draft_device or ("cpu" if self.wants_no_layers else self.device)

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of the layers for each GPU; empty means by free memory."""
        return tuple(map(float, self.tensor_split.split(","))) if self.tensor_split else ()

    @property
    def prefix_cache_bytes(self) -> int:
        """The largest number of bytes of finished jobs' KV cells that are cached; -1 means "decide for me"."""
        return -1 if self.prefix_cache_mb == "auto" else int(self.prefix_cache_mb) * 2**20

    @property
    def itl_target_s(self) -> float:
        """`itl_target_ms` in seconds, infinite for 0."""
        return self.itl_target_ms / 1000 or math.inf

    @property
    def must_be_invariant(self) -> bool:
        """True if the load fails unless numbers are the same whatever other jobs run."""
        return self.deterministic or self.batch_invariant == "on"

    @property
    def invariance_flag(self) -> str:
        """The flag by which it must be, for errors."""
        return "--deterministic" if self.deterministic else "--batch-invariant on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure(EngineSettings):
    """Everything that the engine needs to load. Paths are absolute: it need not share the working directory."""

    model_path: str
    template: str | None = None
    """The text of --chat-template, instead of the model's own template."""
    draft_path: str | None = None
    """The file of --draft-model."""
    kernels_dir: str = ""
    """The directory that remembers which kernels are faster; "" means none."""
    reports_blocks: bool = False
    """True if the engine sends BlocksChanged."""
    wants_numerics: bool = False
    """True if Loaded has numerics; llama.cpp's libraries are read for them."""
    arena_fd: int = -1
    """The descriptor of the front's memory, which the engine inherits: its contents outlive the engine. -1 means none.
    """
    predecessor: Loaded | None = None
    """The facts of the engine that had the model before this one, which is to have it in the same shape: what was
    checked, planned and measured then is taken from here."""

    def successor(self, facts: Loaded) -> Self:
        """Return the configuration of the next engine, after one with this configuration was loaded.

        It gets the same plan, whatever memory is free by then, so that accepted jobs still fit; and the costs of steps,
        which take up to a second to measure.
        """
        return replace(self, predecessor=facts, swa_full="off" if facts.swa_full is False else "on")


inbound_decoder: msgspec.msgpack.Decoder[Inbound | Configure] = msgspec.msgpack.Decoder(
    Inbound | Configure,
    dec_hook=lambda kind, text: kind(text),  # paths
)
"""Reads the frames to the engine."""
