"""The rules for the values of an execute request, and the messages of broken ones (docs/protocol.md#post-execute).

Clients compare these byte for byte. The protocol's fields come first, and then those of our own.
"""

import re
from decimal import ROUND_HALF_EVEN, ROUND_UP, Context
from itertools import islice
from math import isinf

import msgspec

from worker.apis.core.bodies import MAX_ERRORS, Problems
from worker.apis.core.constraint_fields import CONSTRAINTS, check_constraints
from worker.wire.encoding import bounds_of
from worker.wire.jobs import MAX_BIAS, SamplingParams, narrow

MAX_STOPS = 4
MAX_STOP_BYTES = 100
"""Bytes of UTF-8; the message says characters, as it always did."""
MAX_BIASES = 1024
MAX_STOP_TOKEN_IDS = 64
MAX_SALT_CHARS = 256

_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")
"""One spelling for each id, so that no id can be named twice."""

_RULED_ELSEWHERE = frozenset({"max_tokens", "seed", "json_schema", "regex"})
_BOUNDS = {
    field.name: bounds_of(field)
    for field in msgspec.structs.fields(SamplingParams)
    if field.name not in _RULED_ELSEWHERE
}
"""The fields in their order, each with its least and its largest value, if it is a number with bounds."""

_F32_DIGITS = 9
"""The number of significant decimal digits that distinguish any two f32."""


def check_sampling(
    problems: Problems,
    request: SamplingParams,
    max_tokens_out: int,
    vocab_size: int | None,
    *,
    max_stops: int = MAX_STOPS,
) -> None:
    """Check how tokens are drawn and where the answer ends, in the order of the fields; there may be `max_stops` stops.
    A number has the bounds of its field's description."""
    given = {name: text for name in CONSTRAINTS if (text := getattr(request, name)) is not None}
    for name, bounds in _BOUNDS.items():
        match name:
            case "stop":
                _stop(problems, request.stop, max_stops)
            case "logit_bias":
                _logit_bias(problems, request.logit_bias, vocab_size)
            case "ignore_eos":
                _ignore_eos(problems, request)
            case "min_tokens":
                # A max_tokens out of range is reported once, and does not make a min_tokens wrong.
                is_limit = 1 <= request.max_tokens <= max_tokens_out
                int_range(problems, name, request.min_tokens, 0, request.max_tokens if is_limit else max_tokens_out)
            case "stop_token_ids":
                _stop_token_ids(problems, request.stop_token_ids, vocab_size)
            case "grammar" if given:
                check_constraints(problems, given)
            case "cache_salt":
                # The error does not quote the salt, which is a secret.
                n_chars = 1 if request.cache_salt is None else len(request.cache_salt)
                if not 1 <= n_chars <= MAX_SALT_CHARS:
                    text = f"must have 1 to {MAX_SALT_CHARS} characters (got {n_chars})"
                    problems.add(name, f"length(1..={MAX_SALT_CHARS})", text)
            case _ if bounds:
                value, least = getattr(request, name), bounds.get("minimum", 0)
                if isinstance(value, float):
                    float_range(problems, name, value, least, bounds["maximum"])
                else:
                    int_range(problems, name, value, least, bounds.get("maximum"))


def float_range(problems: Problems, field: str, value: float, least: int, most: int, *, subject: str = "") -> None:
    """An f32 must be in [least, most]. `subject` names the value where the field has many."""
    if not least <= value <= most:
        bound = f"at least {least}.0" if value < least else f"at most {most}.0"
        shown, rule = f32_text(value), f"range({least}.0..={most}.0)"
        problems.add(field, rule, f"must be {bound} (got {shown})", subject=subject, value=shown)


def int_range(problems: Problems, field: str, value: int | None, least: int, most: int | None = None) -> None:
    """A whole number must be in [least, most]. No `most` is no upper limit, and None is off."""
    if value is not None and (value < least or (most is not None and value > most)):
        bound = f"at least {least}" if value < least else f"at most {most}"
        rule = f"range({least}..)" if most is None else f"range({least}..={most})"
        problems.add(field, rule, f"must be {bound} (got {value})", value=str(value))


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


def _stop(problems: Problems, stop: tuple[str, ...], most: int) -> None:
    if len(stop) > most:
        text = f"must have at most {most} sequences (got {len(stop)})"
        problems.add("stop", f"max_count({most})", text, value=str(len(stop)))
    for index, one in enumerate(stop[:MAX_ERRORS]):
        n_bytes, subject = len(one.encode()), f"stop sequence {index}"
        if not n_bytes:
            problems.add("stop", "non_empty", "must not be empty", subject=subject)
        elif n_bytes > MAX_STOP_BYTES:
            text = f"must be at most {MAX_STOP_BYTES} characters (got {n_bytes})"
            problems.add("stop", f"max_length({MAX_STOP_BYTES})", text, subject=subject)


def _logit_bias(problems: Problems, biases: dict[str, float], vocab_size: int | None) -> None:
    _max_count(problems, "logit_bias", len(biases), MAX_BIASES)
    of_entries = Problems()
    for index, (token, bias) in enumerate(islice(biases.items(), MAX_BIASES)):
        subject = f"logit_bias entry {index}"
        if _TOKEN_ID.fullmatch(token):
            _in_vocabulary(of_entries, "logit_bias", subject, int(token), vocab_size)
        else:
            of_entries.add("logit_bias", "token_id", "must be named by a token id in decimal", subject=subject)
        float_range(of_entries, "logit_bias", bias, -MAX_BIAS, MAX_BIAS, subject=subject)
    problems.take(of_entries)


def _ignore_eos(problems: Problems, request: SamplingParams) -> None:
    for other in CONSTRAINTS:
        if request.ignore_eos and getattr(request, other) is not None:
            text = f"cannot go with {other}, which says where the text ends; send one of them"
            problems.add("ignore_eos", f"exclusive({other})", text)


def _stop_token_ids(problems: Problems, tokens: tuple[int, ...], vocab_size: int | None) -> None:
    _max_count(problems, "stop_token_ids", len(tokens), MAX_STOP_TOKEN_IDS)
    for index, token in enumerate(tokens[:MAX_ERRORS]):
        _in_vocabulary(problems, "stop_token_ids", f"stop_token_ids entry {index}", token, vocab_size)


def _max_count(problems: Problems, field: str, n_entries: int, most: int) -> None:
    if n_entries > most:
        text = f"must have at most {most} entries (got {n_entries})"
        problems.add(field, f"max_count({most})", text, value=str(n_entries))


def _in_vocabulary(problems: Problems, field: str, subject: str, token: int, vocab_size: int | None) -> None:
    if vocab_size is not None and token >= vocab_size:
        text = f"must be a token id below {vocab_size} (got {token})"
        problems.add(field, f"vocabulary({vocab_size})", text, subject=subject, value=str(token))
