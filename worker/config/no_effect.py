"""Settings that were given and change nothing: each is one log line that names the flag and says why.

Reports before the load what is known then, and the rest when the model is in memory.
"""

from collections.abc import Iterable, Iterator
from dataclasses import fields

from worker.config.engine_settings import DEFAULT_PROMPT_CHARS
from worker.config.option import flag_name
from worker.config.settings import Settings
from worker.observe.log_lines import get_logger
from worker.wire.load import Loaded

log = get_logger()

Idle = Iterator[tuple[str, str]]
"""(the flag as it was given, why it changes nothing)"""
Row = tuple[str, str, bool]
"""(the setting's name, the reason, whether that is so)"""

_MAX_CHARS_PER_TOKEN = 16
"""English has about four; a prompt with more on the average is one of blanks, or of a few long words."""
_DEFAULTS = {each.name: each.default for each in fields(Settings)}


def report(idle: Iterable[tuple[str, str]]) -> None:
    for setting, reason in idle:
        log.warning("no_effect", setting=setting, reason=reason)


def idle_before_load(settings: Settings) -> Idle:
    """Yield the flags that have no effect because of other settings."""
    has_token, has_callback = settings.api_key is not None, settings.callback_url is not None
    drafts, publishes = settings.draft_model is not None, settings.kv_events is not None
    chunks, order = "every prefill step has 64 tokens", "no job is paused, and the oldest comes first"
    yield from _given(
        settings,
        ("require_full_offload", "with --device cpu all layers are on the CPU", settings.device == "cpu"),
        ("itl_target_ms", f"with --deterministic {chunks}", settings.deterministic),
        ("scheduling", f"with --deterministic {order}", settings.deterministic),
        ("draft_device", "it needs --draft-model", not drafts),
        ("draft_max", "it needs --draft-model", not drafts),
        ("kv_events_topic", "it needs --kv-events", not publishes),
        ("kv_events_public", "it needs --kv-events", not publishes),
        ("allowed_host", "with a token every host is answered", has_token),
    )
    if not has_callback and has_token and settings.advertise_url is not None:
        yield "--advertise-url", "without --callback-url the address is not reported"  # a URL may hold a secret
    yield from _given(
        settings, ("legacy_callback_body", "without --callback-url no callback is sent", not has_callback)
    )


def idle_after_load(settings: Settings, facts: Loaded) -> Idle:
    """Yield the flags that have no effect with this model on this machine."""
    context, parallel, head = facts.context_length, facts.parallel, facts.drafts.next_token_head
    why_no_head = "the file has no next-token head" if head is None else head.off_because
    n_usable, most_chars = parallel * context, max(DEFAULT_PROMPT_CHARS, _MAX_CHARS_PER_TOKEN * context)
    fits = f"a context of {context} tokens"
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
    )
    if facts.batch_size > settings.batch_size:
        yield f"--batch-size {settings.batch_size}", f"{parallel} slots and their drafts need {facts.batch_size}"
    is_uncached = not facts.prefix_cache_bytes
    uncut = "this model's KV cache cannot be cut, so no prefix is cached"
    # Without a template a conversation is refused, and only conversations have tools and instructions.
    is_unanswered = facts.model.chat_template is None
    unanswered = "the model has no chat template, so no conversation is answered"
    unsplit = "no GPU has room for a layer, so the CPU has all of them"
    yield from _given(
        settings,
        ("prefix_cache_mb", uncut, is_uncached and settings.prefix_cache_bytes > 0),
        ("prefix_cache_dir", f"no prefix is cached: {facts.prefix_cache_off}", is_uncached),
        ("swa_full", "no layer of this model has a sliding window", facts.swa_full is None),
        ("no_fenced_calls", unanswered, is_unanswered),
        ("keep_billing_block", unanswered, is_unanswered),
        ("reasoning_field", unanswered, is_unanswered),
        ("split_mode", unsplit, facts.backend == "cpu"),
    )


def _given(settings: Settings, *rows: Row) -> Idle:
    for name, reason, is_idle in rows:
        value = getattr(settings, name)
        if is_idle and value != _DEFAULTS[name]:
            words = " ".join(value) if isinstance(value, tuple) else value
            yield flag_name(name) if value is True else f"{flag_name(name)} {words}", reason
