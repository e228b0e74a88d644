"""The combinations of settings that are refused, with what would do instead; and settings that were given and change
nothing: each is one log line that names the flag and says why.
"""

import ipaddress
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields
from urllib.parse import urlsplit

from worker.config.engine_settings import CACHE_TYPES, DEFAULT_PROMPT_CHARS
from worker.config.option import flag_name
from worker.config.settings import Settings
from worker.errors import UsageError
from worker.limits import MIN_CELLS, max_jobs
from worker.observe.log_lines import get_logger
from worker.wire.load import Loaded

log = get_logger()

Idle = Iterator[tuple[str, str]]
"""(the flag as it was given, why it changes nothing)"""

_MAX_CHARS_PER_TOKEN = 16
"""English has about four; a prompt with more on the average is one of blanks, or of a few long words."""
_DEFAULTS = {each.name: each.default for each in fields(Settings)}


def check(settings: Settings, given: Collection[str] = ()) -> Settings:
    """The settings again, when they go together. `given` are the names of those that the user gave.

    Raises: UsageError with those that do not, and what would.
    """
    for contradiction, is_so in (_of_jobs(settings, given) | _of_devices(settings)).items():
        if is_so:
            raise UsageError(contradiction)
    return settings


def _of_jobs(settings: Settings, given: Collection[str]) -> dict[str, bool]:
    """Each text, and whether it is true of the settings."""
    parallel, ctx_size, deterministic = settings.parallel, settings.ctx_size, settings.deterministic
    ubatch_size, batch_size, type_v = settings.ubatch_size, settings.batch_size, settings.cache_type_v
    has_draft_model, events = settings.draft_model is not None, settings.kv_events or "tcp://127.0.0.1"
    is_local = ipaddress.ip_address(urlsplit(events).hostname or "").is_loopback
    return {
        f"--parallel {parallel} needs {MIN_CELLS} cells for each job, and --ctx-size is {ctx_size}: the smallest "
        f"--ctx-size for {parallel} jobs is {parallel * MIN_CELLS}, the largest --parallel for {ctx_size} cells "
        f"is {max_jobs(ctx_size)}": bool(parallel and ctx_size and parallel > max_jobs(ctx_size)),
        f"--ubatch-size {ubatch_size} is more than --batch-size {batch_size}: lower the first or raise the second": (
            "ubatch_size" in given and ubatch_size > batch_size
        ),
        f"--cache-type-v {type_v} is quantised and needs flash attention: "
        "use --flash-attn on or auto, or --cache-type-v f16": (
            type_v not in CACHE_TYPES[:3] and settings.flash_attn == "off"
        ),
        _conflict("--draft-model", "--deterministic", "which drafts nothing"): has_draft_model and deterministic,
        _conflict("--mtp", "--draft-model", "because one model drafts"): settings.mtp and has_draft_model,
        _conflict("--mtp", "--deterministic", "which drafts nothing"): settings.mtp and deterministic,
        _conflict("--batch-invariant off", "--deterministic", "which needs it"): (
            deterministic and settings.batch_invariant == "off"
        ),
        "--require-parity needs a report: add --parity-report FILE, or remove --require-parity": (
            settings.require_parity and settings.parity_report is None
        ),
        f"--kv-events {events} can be reached from other machines, and its events hold the tokens of "
        "all prompts: use tcp://127.0.0.1:PORT, or add --kv-events-public if anyone who can connect may read them": (
            not is_local and not settings.kv_events_public
        ),
    }


def _of_devices(settings: Settings) -> dict[str, bool]:
    on_device, with_layers = f"--device {settings.device}", f"--gpu-layers {settings.gpu_layers}"
    main_gpu, split_mode = f"--main-gpu {settings.main_gpu}", f"--split-mode {settings.split_mode}"
    is_on_cpu, is_split = settings.device == "cpu", settings.split_mode != "none"
    names_one = re.search(r"[0-9]|cpu", settings.device) is not None
    has_main, has_no_layers = settings.main_gpu is not None, settings.wants_no_layers and not is_on_cpu
    return {
        _conflict(with_layers, on_device): is_on_cpu and settings.wants_layers,
        _conflict(split_mode, with_layers): has_no_layers and is_split,
        _conflict("--require-full-offload", with_layers): has_no_layers and settings.require_full_offload,
        f"--tensor-split {settings.tensor_split} has no effect with --split-mode none, which uses one GPU: "
        "add --split-mode layer or row, or remove --tensor-split": not is_split and settings.tensor_split is not None,
        _conflict(main_gpu, on_device, "because each chooses a device"): not is_split and has_main and names_one,
        _conflict(split_mode, on_device): is_split and is_on_cpu,
        _conflict(main_gpu, split_mode, "which uses all GPUs"): is_split and has_main,
    }


def _conflict(flag: str, other: str, why: str = "") -> str:
    return f"{flag} conflicts with {other}{', ' * bool(why)}{why}: remove one of the two"


# ── settings without an effect ───────────────────────────────────────────────────────────────────


def report(idle: Iterable[tuple[str, str]]) -> None:
    for setting, reason in idle:
        log.warning("no_effect", setting=setting, reason=reason)


def idle_before_load(settings: Settings) -> Idle:
    """Yield the flags that have no effect because of other settings."""
    has_token, has_callback = settings.api_key is not None, settings.callback_url is not None
    drafts, publishes = settings.draft_model is not None, settings.kv_events is not None
    order = "no job is paused, and the oldest comes first"
    yield from _given(
        settings,
        ("require_full_offload", "with --device cpu all layers are on the CPU", settings.device == "cpu"),
        ("itl_target_ms", "with --deterministic every prefill step has 64 tokens", settings.deterministic),
        ("scheduling", f"with --deterministic {order}", settings.deterministic),
        ("draft_device", "it needs --draft-model", not drafts),
        ("draft_max", "it needs --draft-model", not drafts),
        ("kv_events_topic", "it needs --kv-events", not publishes),
        ("kv_events_public", "it needs --kv-events", not publishes),
        ("allowed_host", "with a token every host is answered", has_token),
        ("advertise_url", "without --callback-url the address is not reported", has_token and not has_callback),
        ("legacy_callback_body", "without --callback-url no callback is sent", not has_callback),
    )


def idle_after_load(settings: Settings, facts: Loaded) -> Idle:
    """Yield the flags that have no effect with this model on this machine."""
    context, parallel, head = facts.context_length, facts.parallel, facts.drafts.next_token_head
    why_no_head = "the file has no next-token head" if head is None else head.off_because
    n_usable, most_chars = parallel * context, max(DEFAULT_PROMPT_CHARS, _MAX_CHARS_PER_TOKEN * context)
    fits, is_uncached = f"a context of {context} tokens", not facts.prefix_cache_bytes
    uncut = "this model's KV cache cannot be cut, so no prefix is cached"
    # Without a template a conversation is refused, and only conversations have tools and instructions.
    is_unanswered = facts.model.chat_template is None
    unanswered = "the model has no chat template, so no conversation is answered"
    yield from _given(
        settings,
        ("ctx_size", f"{parallel} jobs of {context} tokens use at most {n_usable}", settings.ctx_size > n_usable),
        ("max_tokens_in", f"{fits} holds prompts of at most {context - 1}", settings.max_tokens_in >= context),
        (
            "max_prompt_chars",
            f"{fits} ends after about {4 * context} characters of English",
            settings.max_prompt_chars > most_chars,
        ),
        ("mtp", str(why_no_head), why_no_head is not None),
        (
            "batch_size",
            f"{parallel} slots and their drafts need {facts.batch_size}",
            facts.batch_size > settings.batch_size,
        ),
        ("prefix_cache_mb", uncut, is_uncached and settings.prefix_cache_bytes > 0),
        ("prefix_cache_dir", f"no prefix is cached: {facts.prefix_cache_off}", is_uncached),
        ("swa_full", "no layer of this model has a sliding window", facts.swa_full is None),
        ("no_fenced_calls", unanswered, is_unanswered),
        ("keep_billing_block", unanswered, is_unanswered),
        ("reasoning_field", unanswered, is_unanswered),
        ("split_mode", "no GPU has room for a layer, so the CPU has all of them", facts.backend == "cpu"),
    )


def _given(settings: Settings, *rows: tuple[str, str, bool]) -> Idle:
    """`rows`: a setting's name, the reason why it may be idle, whether that is so."""
    for name, reason, is_idle in rows:
        value = getattr(settings, name)
        if is_idle and value != _DEFAULTS[name]:
            words = " ".join(value) if isinstance(value, tuple) else value
            has_no_word = value is True or name == "advertise_url"  # a URL may hold a secret
            yield flag_name(name) if has_no_word else f"{flag_name(name)} {words}", reason
