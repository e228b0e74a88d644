"""The request all vectors of the protocol notes' Appendix B vary."""

import json
from typing import Any

import msgspec

from worker.apis.core.bodies import FieldError, FieldsRefused, Problems
from worker.apis.core.conversation import read_conversation
from worker.apis.pool.execute import ExecuteRequest, checked_prompt
from worker.wire.encoding import bounds_of
from worker.wire.jobs import SamplingParams
from worker.wire.prompts import Conversation

R0: dict[str, Any] = {
    "job_id": "test-job-123",
    "prompt": "Hello, world!",
    "max_tokens": 100,
    "temperature": 0.7,
    "seed": 42,
    "top_p": 1.0,
    "top_k": 0,
    "repetition_penalty": 1.0,
    "stop": [],
    "min_p": 0.0,
}


def without(field: str) -> dict[str, Any]:
    return {name: value for name, value in R0.items() if name != field}


def _other(field: msgspec.structs.FieldInfo) -> object:
    """A value other than the default and in the field's bounds."""
    default, bounds = field.default, bounds_of(field)
    if isinstance(default, bool):
        return not default
    if isinstance(default, float):
        least, most = bounds["minimum"], bounds["maximum"]
        return (least + default) / 2 if default > least else default + (most - default) / 8
    return default + 1


OTHER_THAN_DEFAULTS: dict[str, Any] = {
    **{
        field.name: _other(field)
        for field in msgspec.structs.fields(SamplingParams)
        if isinstance(field.default, float | int) and field.name != "max_tokens"
    },
    "logit_bias": {"5": 1.5, "0": -100},
    "stop_token_ids": [8, 9],
}
"""The fields that say how tokens are drawn and stand at both doors, each with another value than its default."""


def body_of(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def violations(
    request: ExecuteRequest, max_tokens_out: int, vocab_size: int | None, *, max_prompt_chars: int
) -> list[FieldError]:
    """All rules that the request breaks."""
    try:
        checked_prompt(request, max_tokens_out, vocab_size, max_prompt_chars=max_prompt_chars)
    except FieldsRefused as refused:
        return refused.errors
    return []


def conversation(messages: object, **more: Any) -> Conversation:
    """The conversation as the engine gets it. Raises: FieldsRefused."""
    problems = Problems()
    made = read_conversation(problems, messages, **more)
    problems.check()
    assert made is not None
    return made
