"""What the fields of our own must satisfy, which come after the protocol's and are all optional.

Owns: their ranges, constraint and message texts, and what may not go together. Refuses to know: HTTP, the model but for
the size of its vocabulary. Pure; runs on the front's event loop.
"""

import re
from collections.abc import Iterator
from itertools import islice

from worker.protocol.constraints import constraint_errors
from worker.protocol.field_errors import MAX_ERRORS, FieldError
from worker.protocol.ranges import float_range, int_range
from worker.protocol.request import ExecuteRequest

MAX_LOGPROBS = 20
MAX_DRY_ALLOWED_LENGTH = 2048
MAX_BIASES = 1024
MAX_BIAS = 100
"""At its negative a bias is a ban."""
MAX_STOP_TOKEN_IDS = 64

_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")
"""One spelling for each id, so that no id can be named twice."""


def own_violations(request: ExecuteRequest, max_tokens_out: int, vocab_size: int | None) -> list[FieldError]:
    """All broken rules of our own fields, in their order; the parameters are those of rules.violations."""
    return [
        *int_range("logprobs", request.logprobs, 0, MAX_LOGPROBS),
        *float_range("frequency_penalty", request.frequency_penalty, -2, 2),
        *float_range("presence_penalty", request.presence_penalty, -2, 2),
        *int_range("repeat_last_n", request.repeat_last_n, -1),
        *float_range("typical_p", request.typical_p, 0, 1),
        *float_range("top_n_sigma", request.top_n_sigma, 0, 100),
        *float_range("xtc_probability", request.xtc_probability, 0, 1),
        *float_range("xtc_threshold", request.xtc_threshold, 0, 1),
        *float_range("dry_multiplier", request.dry_multiplier, 0, 100),
        *float_range("dry_base", request.dry_base, 1, 16),
        *int_range("dry_allowed_length", request.dry_allowed_length, 1, MAX_DRY_ALLOWED_LENGTH),
        *_logit_bias(request.logit_bias, vocab_size),
        *_ignore_eos(request),
        *_min_tokens(request, max_tokens_out),
        *_stop_token_ids(request.stop_token_ids, vocab_size),
        *constraint_errors(request.grammar, request.json_schema, request.regex),
    ]


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


def _ignore_eos(request: ExecuteRequest) -> Iterator[FieldError]:
    if not request.ignore_eos:
        return
    for other in ("grammar", "json_schema", "regex"):
        if getattr(request, other) is not None:
            message = f"ignore_eos cannot go with {other}, which says where the text ends; send one of them"
            yield FieldError(field="ignore_eos", constraint=f"exclusive({other})", message=message)


def _min_tokens(request: ExecuteRequest, max_tokens_out: int) -> Iterator[FieldError]:
    """A max_tokens out of range is told once, and does not make a min_tokens wrong."""
    is_limit = 1 <= request.max_tokens <= max_tokens_out
    yield from int_range("min_tokens", request.min_tokens, 0, request.max_tokens if is_limit else max_tokens_out)


def _stop_token_ids(tokens: tuple[int, ...], vocab_size: int | None) -> Iterator[FieldError]:
    yield from _max_count("stop_token_ids", len(tokens), MAX_STOP_TOKEN_IDS)
    for index, token in enumerate(tokens[:MAX_ERRORS]):
        yield from _in_vocabulary("stop_token_ids", f"stop_token_ids entry {index}", token, vocab_size)


def _max_count(field: str, n_entries: int, most: int) -> Iterator[FieldError]:
    if n_entries > most:
        message = f"{field} must have at most {most} entries (got {n_entries})"
        yield FieldError(field=field, constraint=f"max_count({most})", message=message, value=str(n_entries))


def _in_vocabulary(field: str, subject: str, token: int, vocab_size: int | None) -> Iterator[FieldError]:
    if vocab_size is not None and token >= vocab_size:
        message = f"{subject} must be a token id below {vocab_size} (got {token})"
        yield FieldError(field=field, constraint=f"vocabulary({vocab_size})", message=message, value=str(token))
