"""What the values of an execute request must satisfy, and the words that say so (docs/protocol.md 4).

Owns: the order of all rules; ranges, constraint and message texts of the protocol's own fields (own_rules.py has the
rest), which clients compare byte for byte. Refuses to know: JSON types (request.py), HTTP, the model. Pure; runs on the
front's event loop.
"""

from collections.abc import Iterator

from worker.protocol.field_errors import MAX_ERRORS, FieldError
from worker.protocol.own_rules import own_violations
from worker.protocol.ranges import float_range
from worker.protocol.request import ExecuteRequest

MAX_STOPS = 4
MAX_STOP_BYTES = 100
"""In UTF-8; the message says characters, as it always did."""


def violations(
    request: ExecuteRequest, max_tokens_out: int, vocab_size: int | None, *, max_prompt_chars: int
) -> list[FieldError]:
    """All broken rules, the protocol's fields first, each group in the order of its fields.

    `max_tokens_out` is the largest max_tokens allowed; `vocab_size` None: not known yet, and ids are not held to it.
    `max_prompt_chars` counts Unicode scalar values.
    """
    return [
        *_job_id(request.job_id),
        *_prompt(request.prompt, max_prompt_chars),
        *_max_tokens(request.max_tokens, max_tokens_out),
        *float_range("temperature", request.temperature, 0, 2),
        *float_range("top_p", request.top_p, 0, 1),
        *float_range("repetition_penalty", request.repetition_penalty, 0, 2),
        *_stop(request.stop),
        *float_range("min_p", request.min_p, 0, 1),
        *own_violations(request, max_tokens_out, vocab_size),
    ]


def _job_id(job_id: str) -> Iterator[FieldError]:
    if not job_id:
        yield FieldError(field="job_id", constraint="non_empty", message="job_id must not be empty", value="")


def _prompt(prompt: str, most: int) -> Iterator[FieldError]:
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


def _stop(stop: tuple[str, ...]) -> Iterator[FieldError]:
    if len(stop) > MAX_STOPS:
        message = f"stop must have at most {MAX_STOPS} sequences (got {len(stop)})"
        yield FieldError(field="stop", constraint=f"max_count({MAX_STOPS})", message=message, value=str(len(stop)))
    for index, text in enumerate(stop[:MAX_ERRORS]):
        n_bytes = len(text.encode())
        if not n_bytes:
            message = f"stop sequence {index} must not be empty"
            yield FieldError(field="stop", constraint="non_empty", message=message)
        elif n_bytes > MAX_STOP_BYTES:
            message = f"stop sequence {index} must be at most {MAX_STOP_BYTES} characters (got {n_bytes})"
            yield FieldError(field="stop", constraint=f"max_length({MAX_STOP_BYTES})", message=message)
