"""Every rule of the protocol's fields, byte for byte (vectors of the protocol notes, B.1)."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.apis.pool.vectors import R0, body_of, violations, without
from tests.tables import cases
from worker.apis.core.bodies import MAX_ERRORS, FieldError, encode_violations
from worker.apis.pool.execute import ExecuteRequest, checked_prompt, parse_execute
from worker.wire.prompts import Conversation

MAX_TOKENS_OUT = 2048
MAX_PROMPT_CHARS = 32_768


def broken(request: ExecuteRequest, max_prompt_chars: int = MAX_PROMPT_CHARS) -> list[FieldError]:
    return violations(request, MAX_TOKENS_OUT, None, max_prompt_chars=max_prompt_chars)


def answer(sent: dict[str, Any], max_tokens_out: int = MAX_TOKENS_OUT) -> bytes:
    found = violations(parse_execute(body_of(sent)), max_tokens_out, None, max_prompt_chars=MAX_PROMPT_CHARS)
    return encode_violations(found)


def errors(*entries: str) -> bytes:
    return ('{"errors":[' + ",".join(entries) + "]}").encode()


def entry(field: str, constraint: str, message: str, value: str | None = None) -> str:
    tail = "" if value is None else f',"value":"{value}"'
    return f'{{"field":"{field}","constraint":"{constraint}","message":"{message}"{tail}}}'


@cases
def test_within_the_rules(change: dict[str, Any]) -> None:
    assert answer(R0 | change) == errors()


@cases
def test_all_broken_rules_are_reported_at_once_in_field_order(change: dict[str, Any], entries: list[str]) -> None:
    assert answer(R0 | change) == errors(*entries)


def test_the_prompt_of_a_conversation_is_what_the_template_renders() -> None:
    asked = {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"a": 1}}
    request = parse_execute(body_of(without("prompt") | asked))
    prompt = checked_prompt(request, MAX_TOKENS_OUT, None, max_prompt_chars=MAX_PROMPT_CHARS)
    assert prompt == Conversation(messages='[{"role":"user","content":"hi"}]', template_kwargs='{"a":1}')


def test_the_limit_of_max_tokens_is_the_workers_own() -> None:
    message = "max_tokens must be at most 16 (got 17)"
    assert answer(R0 | {"max_tokens": 17}, 16) == errors(entry("max_tokens", "range(1..=16)", message, "17"))
    assert answer(R0 | {"max_tokens": 4096}, 4096) == errors()


def test_the_answer_to_a_flood_of_bad_stops_stays_small() -> None:
    found = broken(parse_execute(body_of(R0 | {"stop": [""] * 100_000})))
    assert found[0].message == "stop must have at most 4 sequences (got 100000)"
    assert len(found) == 1 + MAX_ERRORS


# ── laws ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.long
@given(
    st.text(max_size=3),
    st.integers(0, 3000),
    st.floats(-1, 3, width=32),
    st.lists(st.text(max_size=60), max_size=6),
)
def test_prompt_and_stop_texts_are_never_echoed(prompt: str, most: int, top_p: float, stop: list[str]) -> None:
    sent = R0 | {"prompt": prompt * 20_000, "max_tokens": most, "top_p": top_p, "stop": stop}
    for error in broken(parse_execute(body_of(sent))):
        assert len(error.message) < 100
        assert error.value is msgspec.UNSET or error.field not in {"prompt", "stop"} or error.value == str(len(stop))


@pytest.mark.parametrize("limit", [1, 100, 32_769, 2**21])
def test_the_longest_prompt_is_a_setting_and_its_constraint_says_which(limit: int) -> None:
    """--max-prompt-chars, counted in Unicode scalar values."""
    assert broken(parse_execute(body_of(R0 | {"prompt": "🌍" * limit})), limit) == []
    (error,) = broken(parse_execute(body_of(R0 | {"prompt": "🌍" * (limit + 1)})), limit)
    assert (error.constraint, error.value) == (f"length(1..={limit})", msgspec.UNSET)
    assert error.message == f"prompt must be at most {limit} characters (got {limit + 1})"
