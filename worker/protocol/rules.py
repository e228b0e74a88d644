"""The rules for the values of an execute request, and the messages of broken ones (docs/protocol.md#post-execute).

Owns: the order of all rules, the protocol's fields first and then those of our own; ranges, constraint and message
texts, which clients compare byte for byte. Pure.
"""

import re
from collections.abc import Iterator, Mapping
from decimal import ROUND_HALF_EVEN, ROUND_UP, Context
from itertools import islice
from math import isinf

import msgspec
from msgspec import UNSET, UnsetType

from worker.protocol.bodies import MAX_ERRORS, FieldError, FieldsRefused
from worker.protocol.constraints import constraint_errors
from worker.protocol.execute import ExecuteRequest
from worker.wire.encoding import bounds_of
from worker.wire.jobs import MAX_BIAS, Prompt, Sampling, narrow

MAX_STOPS = 4
MAX_STOP_BYTES = 100
"""Bytes of UTF-8; the message says characters, as it always did."""
MAX_DRY_ALLOWED_LENGTH = 2048
MAX_BIASES = 1024
MAX_STOP_TOKEN_IDS = 64
MAX_SALT_CHARS = 256

_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")
"""One spelling for each id, so that no id can be named twice."""

_RULED_ELSEWHERE = frozenset({"max_tokens", "seed", "json_schema", "regex"})
_BOUNDS = {
    field.name: bounds_of(field) for field in msgspec.structs.fields(Sampling) if field.name not in _RULED_ELSEWHERE
}
"""The fields in their order, each with its least and its largest value, if it is a number with bounds."""

_F32_DIGITS = 9
"""The number of significant decimal digits that distinguish any two f32."""


def violations(
    request: ExecuteRequest, max_tokens_out: int, vocab_size: int | None, *, max_prompt_chars: int
) -> list[FieldError]:
    """Return all broken rules, as `checked_prompt` raises them."""
    try:
        checked_prompt(request, max_tokens_out, vocab_size, max_prompt_chars=max_prompt_chars)
    except FieldsRefused as refused:
        return refused.errors
    return []


def checked_prompt(
    request: ExecuteRequest, max_tokens_out: int, vocab_size: int | None, *, max_prompt_chars: int
) -> Prompt:
    """Return the prompt that the model reads, if no rule is broken.

    `max_tokens_out` is the largest max_tokens allowed. While `vocab_size` is None, ids are not compared with it.
    `max_prompt_chars` counts Unicode scalar values. Raises: FieldsRefused with all broken rules, in the order of the
    fields.
    """
    errors = [
        *_job_id(request.job_id),
        *_prompt(request.prompt, max_prompt_chars),
        *_max_tokens(request.max_tokens, max_tokens_out),
        *sampling_violations(request, max_tokens_out, vocab_size),
        *_beside_a_prompt(request),
    ]
    prompt: Prompt | UnsetType = request.prompt
    if request.messages is not None:
        try:
            prompt = request.conversation(max_chars=max_prompt_chars)
        except FieldsRefused as refused:
            errors += refused.errors
    if errors:
        raise FieldsRefused(errors)
    assert prompt is not UNSET  # parse_execute has refused a request without either
    return prompt


def sampling_violations(
    request: Sampling, max_tokens_out: int, vocab_size: int | None, *, max_stops: int = MAX_STOPS
) -> Iterator[FieldError]:
    """Yield the broken rules about how tokens are drawn and where the answer ends, in the order of the fields; there
    may be `max_stops` stops. A number has the bounds of its field's description."""
    for name, bounds in _BOUNDS.items():
        match name:
            case "stop":
                yield from _stop(request.stop, max_stops)
            case "logit_bias":
                yield from _logit_bias(request.logit_bias, vocab_size)
            case "ignore_eos":
                yield from _ignore_eos(request)
            case "min_tokens":
                yield from _min_tokens(request, max_tokens_out)
            case "stop_token_ids":
                yield from _stop_token_ids(request.stop_token_ids, vocab_size)
            case "grammar":
                yield from constraint_errors(request.grammar, request.json_schema, request.regex)
            case "cache_salt":
                yield from _cache_salt(request.cache_salt)
            case _ if bounds:
                yield from _out_of_bounds(name, getattr(request, name), bounds)


def _out_of_bounds(name: str, value: float | None, bounds: Mapping[str, int]) -> Iterator[FieldError]:
    least, most = bounds.get("minimum", 0), bounds.get("maximum")
    if isinstance(value, float) and most is not None:
        yield from float_range(name, value, least, most)
    elif isinstance(value, int):
        yield from int_range(name, value, least, most)


def float_range(field: str, value: float, least: int, most: int, *, subject: str = "") -> Iterator[FieldError]:
    """The error of an f32 that is outside [least, most]. `subject` names the value where the field has many."""
    if least <= value <= most:
        return
    bound = f"at least {least}.0" if value < least else f"at most {most}.0"
    shown = f32_text(value)
    yield FieldError(
        field=field,
        constraint=f"range({least}.0..={most}.0)",
        message=f"{subject or field} must be {bound} (got {shown})",
        value=shown,
    )


def int_range(field: str, value: int | None, least: int, most: int | None = None) -> Iterator[FieldError]:
    """The error of a whole number that is outside [least, most]. No `most` is no upper limit, and None is off."""
    if value is None or (least <= value and (most is None or value <= most)):
        return
    bound = f"at least {least}" if value < least else f"at most {most}"
    yield FieldError(
        field=field,
        constraint=f"range({least}..)" if most is None else f"range({least}..={most})",
        message=f"{field} must be {bound} (got {value})",
        value=str(value),
    )


def f32_text(value: float) -> str:
    """The shortest decimal that reads back as this f32, without exponent or trailing `.0`, as Rust prints it."""
    if isinf(value):
        return "inf" if value > 0 else "-inf"
    for digits in range(1, _F32_DIGITS):
        # At a power of two the gap above is twice the gap below: the second nearest may be the one that reads back.
        for rounding in (ROUND_HALF_EVEN, ROUND_UP):
            decimal = Context(prec=digits, rounding=rounding).create_decimal_from_float(value)
            if narrow(float(decimal)) == value:
                return f"{decimal:f}"
    return f"{Context(prec=_F32_DIGITS).create_decimal_from_float(value):f}"


def _job_id(job_id: str) -> Iterator[FieldError]:
    if not job_id:
        yield FieldError(field="job_id", constraint="non_empty", message="job_id must not be empty", value="")


def _prompt(prompt: str | UnsetType, most: int) -> Iterator[FieldError]:
    if prompt is UNSET:
        return
    constraint = f"length(1..={most})"
    if not prompt:
        yield FieldError(field="prompt", constraint=constraint, message="prompt must not be empty")
    elif len(prompt) > most:
        text = f"prompt must be at most {most} characters (got {len(prompt)})"
        yield FieldError(field="prompt", constraint=constraint, message=text)


def _max_tokens(max_tokens: int, most: int) -> Iterator[FieldError]:
    if max_tokens < 1:
        message = "max_tokens must be at least 1"
    elif max_tokens > most:
        message = f"max_tokens must be at most {most} (got {max_tokens})"
    else:
        return
    yield FieldError(field="max_tokens", constraint=f"range(1..={most})", message=message, value=str(max_tokens))


def _stop(stop: tuple[str, ...], most: int) -> Iterator[FieldError]:
    if len(stop) > most:
        message = f"stop must have at most {most} sequences (got {len(stop)})"
        yield FieldError(field="stop", constraint=f"max_count({most})", message=message, value=str(len(stop)))
    for index, text in enumerate(stop[:MAX_ERRORS]):
        n_bytes = len(text.encode())
        if not n_bytes:
            message = f"stop sequence {index} must not be empty"
            yield FieldError(field="stop", constraint="non_empty", message=message)
        elif n_bytes > MAX_STOP_BYTES:
            message = f"stop sequence {index} must be at most {MAX_STOP_BYTES} characters (got {n_bytes})"
            yield FieldError(field="stop", constraint=f"max_length({MAX_STOP_BYTES})", message=message)


def _logit_bias(biases: dict[str, float], vocab_size: int | None) -> Iterator[FieldError]:
    yield from _max_count("logit_bias", len(biases), MAX_BIASES)
    entries = enumerate(islice(biases.items(), MAX_BIASES))
    errors = (error for index, (token, bias) in entries for error in _bias(index, token, bias, vocab_size))
    yield from islice(errors, MAX_ERRORS)


def _bias(index: int, token: str, bias: float, vocab_size: int | None) -> Iterator[FieldError]:
    subject = f"logit_bias entry {index}"
    if _TOKEN_ID.fullmatch(token):
        yield from _in_vocabulary("logit_bias", subject, int(token), vocab_size)
    else:
        message = f"{subject} must be named by a token id in decimal"
        yield FieldError(field="logit_bias", constraint="token_id", message=message)
    yield from float_range("logit_bias", bias, -MAX_BIAS, MAX_BIAS, subject=subject)


def _ignore_eos(request: Sampling) -> Iterator[FieldError]:
    if not request.ignore_eos:
        return
    for other in ("grammar", "json_schema", "regex"):
        if getattr(request, other) is not None:
            message = f"ignore_eos cannot go with {other}, which says where the text ends; send one of them"
            yield FieldError(field="ignore_eos", constraint=f"exclusive({other})", message=message)


def _min_tokens(request: Sampling, max_tokens_out: int) -> Iterator[FieldError]:
    """A max_tokens out of range is reported once, and does not make a min_tokens wrong."""
    is_limit = 1 <= request.max_tokens <= max_tokens_out
    yield from int_range("min_tokens", request.min_tokens, 0, request.max_tokens if is_limit else max_tokens_out)


def _stop_token_ids(tokens: tuple[int, ...], vocab_size: int | None) -> Iterator[FieldError]:
    yield from _max_count("stop_token_ids", len(tokens), MAX_STOP_TOKEN_IDS)
    for index, token in enumerate(tokens[:MAX_ERRORS]):
        yield from _in_vocabulary("stop_token_ids", f"stop_token_ids entry {index}", token, vocab_size)


def _cache_salt(salt: str | None) -> Iterator[FieldError]:
    """The error does not quote the salt, which is a secret."""
    if salt is not None and not 1 <= len(salt) <= MAX_SALT_CHARS:
        message = f"cache_salt must have 1 to {MAX_SALT_CHARS} characters (got {len(salt)})"
        yield FieldError(field="cache_salt", constraint=f"length(1..={MAX_SALT_CHARS})", message=message)


def _max_count(field: str, n_entries: int, most: int) -> Iterator[FieldError]:
    if n_entries > most:
        message = f"{field} must have at most {most} entries (got {n_entries})"
        yield FieldError(field=field, constraint=f"max_count({most})", message=message, value=str(n_entries))


def _beside_a_prompt(request: ExecuteRequest) -> Iterator[FieldError]:
    for field in ("messages", "chat_template_kwargs"):
        if request.prompt is not UNSET and getattr(request, field) is not None:
            message = f"{field} cannot go with prompt, which no template is applied to; send one of them"
            yield FieldError(field=field, constraint="exclusive(prompt)", message=message)


def _in_vocabulary(field: str, subject: str, token: int, vocab_size: int | None) -> Iterator[FieldError]:
    if vocab_size is not None and token >= vocab_size:
        message = f"{subject} must be a token id below {vocab_size} (got {token})"
        yield FieldError(field=field, constraint=f"vocabulary({vocab_size})", message=message, value=str(token))
