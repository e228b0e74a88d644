"""What the values of an execute request must satisfy, and the words that say so (PROTOCOL.md 4).

Owns: ranges, constraint and message texts, the `{"errors":[…]}` body; clients compare them byte for byte.
Refuses to know: JSON types (request.py), HTTP, the model. Pure; runs on the front's event loop.
"""

from collections.abc import Iterator
from decimal import ROUND_HALF_EVEN, ROUND_UP, Context
from math import isinf

import msgspec

from worker.engine.contract import Violation
from worker.errors import InvalidRequest
from worker.protocol.request import ExecuteRequest, narrow

MAX_PROMPT_CHARACTERS = 32_768
"""Unicode scalar values."""

MAX_STOPS = 4
MAX_STOPS_EXAMINED = 64
"""A body of 2 MiB has room for 700,000 stops; an answer about each would be 60 MB."""

MAX_STOP_BYTES = 100
"""In UTF-8; the message says characters, as it always did."""

_F32_DIGITS = 9
"""Significant decimal digits that tell any two f32 apart."""


class FieldError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One broken rule. `value` is what was sent, as text; never a prompt's or a stop's."""

    field: str
    constraint: str
    message: str
    value: str | None = None


class FieldsRefused(InvalidRequest):
    """A request whose fields break rules: a 400 with all of them at once (`encode_violations`)."""

    wording = "{}"

    def __init__(self, errors: list[FieldError]) -> None:
        super().__init__("; ".join(error.message for error in errors))
        self.errors = errors


class _Errors(msgspec.Struct, frozen=True):
    errors: list[FieldError]


def violations(request: ExecuteRequest, max_tokens_out: int) -> list[FieldError]:
    """All broken rules in the order of the fields; `max_tokens_out` is the largest max_tokens allowed."""
    return [
        *_job_id(request.job_id),
        *_prompt(request.prompt),
        *_max_tokens(request.max_tokens, max_tokens_out),
        *_range("temperature", request.temperature, 2),
        *_range("top_p", request.top_p, 1),
        *_range("repetition_penalty", request.repetition_penalty, 2),
        *_stop(request.stop),
        *_range("min_p", request.min_p, 1),
    ]


def field_error(violation: Violation) -> FieldError:
    """What only the engine could find out: context_length(N), max_tokens_in(K), a grammar's syntax."""
    return FieldError(field=violation.field, constraint=violation.constraint, message=violation.message)


def encode_violations(errors: list[FieldError]) -> bytes:
    """The body of the 400: `{"errors":[…]}`."""
    return msgspec.json.encode(_Errors(errors))


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


def _prompt(prompt: str) -> Iterator[FieldError]:
    constraint = f"length(1..={MAX_PROMPT_CHARACTERS})"
    if not prompt:
        yield FieldError(field="prompt", constraint=constraint, message="prompt must not be empty")
    elif len(prompt) > MAX_PROMPT_CHARACTERS:
        text = f"prompt must be at most {MAX_PROMPT_CHARACTERS} characters (got {len(prompt)})"
        yield FieldError(field="prompt", constraint=constraint, message=text)


def _max_tokens(max_tokens: int, most: int) -> Iterator[FieldError]:
    if max_tokens < 1:
        message = "max_tokens must be at least 1"
    elif max_tokens > most:
        message = f"max_tokens must be at most {most} (got {max_tokens})"
    else:
        return
    yield FieldError(field="max_tokens", constraint=f"range(1..={most})", message=message, value=str(max_tokens))


def _range(field: str, value: float, most: int) -> Iterator[FieldError]:
    if 0 <= value <= most:
        return
    bound = "at least 0.0" if value < 0 else f"at most {most}.0"
    shown = f32_text(value)
    message = f"{field} must be {bound} (got {shown})"
    yield FieldError(field=field, constraint=f"range(0.0..={most}.0)", message=message, value=shown)


def _stop(stop: tuple[str, ...]) -> Iterator[FieldError]:
    if len(stop) > MAX_STOPS:
        message = f"stop must have at most {MAX_STOPS} sequences (got {len(stop)})"
        yield FieldError(field="stop", constraint=f"max_count({MAX_STOPS})", message=message, value=str(len(stop)))
    for index, text in enumerate(stop[:MAX_STOPS_EXAMINED]):
        n_bytes = len(text.encode())
        if not n_bytes:
            message = f"stop sequence {index} must not be empty"
            yield FieldError(field="stop", constraint="non_empty", message=message)
        elif n_bytes > MAX_STOP_BYTES:
            message = f"stop sequence {index} must be at most {MAX_STOP_BYTES} characters (got {n_bytes})"
            yield FieldError(field="stop", constraint=f"max_length({MAX_STOP_BYTES})", message=message)
