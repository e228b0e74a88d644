"""Settings that were given and change nothing: each is one log line that names the flag and says why.

Reports before the load what is known then, and the rest when the model is in memory.
"""

from collections.abc import Iterable, Iterator

from worker.config.settings import DEFAULT_PROMPT_CHARS, Settings
from worker.observe.log_lines import get_logger
from worker.wire.load import Loaded

log = get_logger()

Idle = Iterator[tuple[str, str]]
"""(the flag as it was given, why it changes nothing)"""

_MAX_CHARS_PER_TOKEN = 16
"""English has about four; a prompt with more on the average is one of blanks, or of a few long words."""


def report(idle: Iterable[tuple[str, str]]) -> None:
    for setting, reason in idle:
        log.warning("no_effect", setting=setting, reason=reason)


def idle_before_load(settings: Settings) -> Idle:
    """Yield the flags that have no effect because of other settings."""
    if settings.require_full_offload and settings.device_or_auto == "cpu":
        yield "--require-full-offload", "with --device cpu all layers are on the CPU"
    if settings.deterministic and settings.itl_target_ms != Settings().itl_target_ms:
        yield f"--itl-target-ms {settings.itl_target_ms}", "with --deterministic every prefill step has 64 tokens"
    if settings.deterministic and settings.scheduling != Settings().scheduling:
        yield f"--scheduling {settings.scheduling}", "with --deterministic no job is paused, and the oldest comes first"
    if settings.draft_model is None:
        if settings.draft_device is not None:
            yield f"--draft-device {settings.draft_device}", "it needs --draft-model"
        if settings.draft_max != Settings().draft_max:
            yield f"--draft-max {settings.draft_max}", "it needs --draft-model"
    if settings.kv_events is None:
        if settings.kv_events_topic is not None:
            yield f"--kv-events-topic {settings.kv_events_topic}", "it needs --kv-events"
        if settings.kv_events_public:
            yield "--kv-events-public", "it needs --kv-events"
    if settings.api_key is not None and settings.allowed_host:
        yield f"--allowed-host {' '.join(settings.allowed_host)}", "with a token every host is answered"
    if settings.callback_url is None and settings.advertise_url is not None and settings.api_key is not None:
        yield "--advertise-url", "without --callback-url the address is not reported"
    if settings.callback_url is None and settings.legacy_callback_body:
        yield "--legacy-callback-body", "without --callback-url no callback is sent"


def idle_after_load(settings: Settings, facts: Loaded) -> Idle:
    """Yield the flags that have no effect with this model on this machine."""
    n_usable = facts.parallel * facts.context_length
    if settings.ctx_size > n_usable:
        yield (
            f"--ctx-size {settings.ctx_size}",
            f"{facts.parallel} jobs of {facts.context_length} tokens use at most {n_usable}",
        )
    if settings.max_tokens_in >= facts.context_length:
        yield (
            f"--max-tokens-in {settings.max_tokens_in}",
            f"a context of {facts.context_length} tokens holds prompts of at most {facts.context_length - 1}",
        )
    if settings.max_prompt_chars > max(DEFAULT_PROMPT_CHARS, _MAX_CHARS_PER_TOKEN * facts.context_length):
        n_chars = 4 * facts.context_length
        reason = f"a context of {facts.context_length} tokens ends after about {n_chars} characters of English"
        yield f"--max-prompt-chars {settings.max_prompt_chars}", reason
    head = facts.drafts.next_token_head
    if settings.mtp and (head is None or head.off_because is not None):
        yield "--mtp", "the file has no next-token head" if head is None else str(head.off_because)
    if facts.batch_size > settings.batch_size:
        yield f"--batch-size {settings.batch_size}", f"{facts.parallel} slots and their drafts need {facts.batch_size}"
    if settings.prefix_cache_bytes > 0 and not facts.prefix_cache_bytes:
        yield (
            f"--prefix-cache-mb {settings.prefix_cache_mb}",
            "this model's KV cache cannot be cut, so no prefix is cached",
        )
    if settings.prefix_cache_dir is not None and not facts.prefix_cache_bytes:
        yield f"--prefix-cache-dir {settings.prefix_cache_dir}", f"no prefix is cached: {facts.prefix_cache_off}"
    if settings.swa_full != "auto" and facts.swa_full is None:
        yield f"--swa-full {settings.swa_full}", "no layer of this model has a sliding window"
    if facts.model.chat_template is None:
        # Without a template a conversation is refused, and only conversations have tools and instructions.
        reason = "the model has no chat template, so no conversation is answered"
        given = {
            "--no-fenced-calls": settings.no_fenced_calls,
            "--keep-billing-block": settings.keep_billing_block,
            f"--reasoning-field {settings.reasoning_field}": settings.reasoning_field != "reasoning_content",
        }
        yield from ((flag, reason) for flag, is_given in given.items() if is_given)
    if settings.split_mode != "none" and facts.backend == "cpu":
        yield f"--split-mode {settings.split_mode}", "no GPU has room for a layer, so the CPU has all of them"
