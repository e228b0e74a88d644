"""Every rule of the protocol's fields, byte for byte (vectors of the protocol notes, B.1)."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.apis.pool.vectors import R0, body_of, violations, without
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


def out_of(field: str, most: str, bound: str, value: str) -> str:
    return entry(field, f"range(0.0..={most})", f"{field} must be {bound} (got {value})", value)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({}, id="TV-001"),
        pytest.param({"prompt": "x" * 32768}, id="TV-005"),
        pytest.param({"prompt": "世" * 32768}, id="TV-006"),
        pytest.param({"max_tokens": 1}, id="TV-010"),
        pytest.param({"max_tokens": 2048}, id="TV-011"),
        pytest.param({"temperature": 0.0}, id="TV-014"),
        pytest.param({"temperature": 2.0}, id="TV-015"),
        pytest.param({"temperature": 2}, id="TV-018"),
        pytest.param({"temperature": 2.00000001}, id="TV-019"),
        pytest.param({"seed": 0}, id="TV-023"),
        pytest.param({"seed": 18446744073709551615}, id="TV-024"),
        pytest.param({"seed": 12345678901234567890}, id="TV-025"),
        pytest.param({"seed": None}, id="TV-026"),
        pytest.param({"top_p": 0.0}, id="TV-030a"),
        pytest.param({"top_p": 0.5}, id="TV-030b"),
        pytest.param({"top_p": 1.0}, id="TV-030c"),
        pytest.param({"top_k": 0}, id="TV-033a"),
        pytest.param({"top_k": 50}, id="TV-033b"),
        pytest.param({"top_k": 151936}, id="TV-033c"),
        pytest.param({"top_k": 4294967295}, id="TV-033d"),
        pytest.param({"repetition_penalty": 0.0}, id="TV-036a"),
        pytest.param({"repetition_penalty": 1.0}, id="TV-036b"),
        pytest.param({"repetition_penalty": 1.5}, id="TV-036c"),
        pytest.param({"repetition_penalty": 2.0}, id="TV-036d"),
        pytest.param({"stop": []}, id="TV-039"),
        pytest.param({"stop": ["\\n\\n"]}, id="TV-040"),
        pytest.param({"stop": ["\\n\\n", "END", "STOP"]}, id="TV-041"),
        pytest.param({"stop": ["a", "b", "c", "d"]}, id="TV-042"),
        pytest.param({"stop": ["x" * 100]}, id="TV-046"),
        pytest.param({"stop": ["世" * 33]}, id="TV-048"),
        pytest.param({"min_p": 0.0}, id="TV-053a"),
        pytest.param({"min_p": 0.05}, id="TV-053b"),
        pytest.param({"min_p": 1.0}, id="TV-053c"),
        pytest.param(
            {"job_id": "test-123", "prompt": "Hello world", "top_p": 0.9, "top_k": 50, "repetition_penalty": 1.1}
            | {"stop": ["\n\n"], "min_p": 0.05},
            id="TV-064",
        ),
        pytest.param({"stream": True, "model": "x"}, id="TV-070"),
        pytest.param({"temperature": -0.0}, id="TV-079"),
        pytest.param({"job_id": " "}, id="TV-080"),
    ],
)
def test_within_the_rules(change: dict[str, Any]) -> None:
    assert answer(R0 | change) == errors()


PROMPT_LENGTH = "length(1..=32768)"
JOB_ID = entry("job_id", "non_empty", "job_id must not be empty", "")
PROMPT = entry("prompt", PROMPT_LENGTH, "prompt must not be empty")
MAX_TOKENS = entry("max_tokens", "range(1..=2048)", "max_tokens must be at least 1", "0")
FIVE_STOPS = entry("stop", "max_count(4)", "stop must have at most 4 sequences (got 5)", "5")


def empty_stop(index: int) -> str:
    return entry("stop", "non_empty", f"stop sequence {index} must not be empty")


def long_stop(index: int, n_bytes: int) -> str:
    return entry("stop", "max_length(100)", f"stop sequence {index} must be at most 100 characters (got {n_bytes})")


@pytest.mark.parametrize(
    ("change", "entries"),
    [
        pytest.param({"job_id": ""}, [JOB_ID], id="TV-002"),
        pytest.param({"prompt": ""}, [PROMPT], id="TV-003"),
        pytest.param(
            {"prompt": "x" * 32769},
            [entry("prompt", PROMPT_LENGTH, "prompt must be at most 32768 characters (got 32769)")],
            id="TV-004",
        ),
        pytest.param(
            {"prompt": "🌍" * 32769},
            [entry("prompt", PROMPT_LENGTH, "prompt must be at most 32768 characters (got 32769)")],
            id="TV-007",
        ),
        pytest.param({"max_tokens": 0}, [MAX_TOKENS], id="TV-008"),
        pytest.param(
            {"max_tokens": 2049},
            [entry("max_tokens", "range(1..=2048)", "max_tokens must be at most 2048 (got 2049)", "2049")],
            id="TV-009",
        ),
        pytest.param({"temperature": -0.1}, [out_of("temperature", "2.0", "at least 0.0", "-0.1")], id="TV-012"),
        pytest.param({"temperature": 2.1}, [out_of("temperature", "2.0", "at most 2.0", "2.1")], id="TV-013"),
        pytest.param({"temperature": 2.5}, [out_of("temperature", "2.0", "at most 2.0", "2.5")], id="TV-016"),
        pytest.param({"temperature": 3.0}, [out_of("temperature", "2.0", "at most 2.0", "3")], id="TV-017"),
        pytest.param({"temperature": 1e39}, [out_of("temperature", "2.0", "at most 2.0", "inf")], id="inf"),
        pytest.param({"temperature": -1e39}, [out_of("temperature", "2.0", "at least 0.0", "-inf")], id="minus-inf"),
        pytest.param({"temperature": 10**400}, [out_of("temperature", "2.0", "at most 2.0", "inf")], id="400-digits"),
        pytest.param({"top_p": -0.1}, [out_of("top_p", "1.0", "at least 0.0", "-0.1")], id="TV-031"),
        pytest.param({"top_p": 1.1}, [out_of("top_p", "1.0", "at most 1.0", "1.1")], id="TV-032"),
        pytest.param(
            {"repetition_penalty": -0.1},
            [out_of("repetition_penalty", "2.0", "at least 0.0", "-0.1")],
            id="TV-037",
        ),
        pytest.param(
            {"repetition_penalty": 2.1}, [out_of("repetition_penalty", "2.0", "at most 2.0", "2.1")], id="TV-038"
        ),
        pytest.param({"stop": list("abcde")}, [FIVE_STOPS], id="TV-043"),
        pytest.param({"stop": [""]}, [empty_stop(0)], id="TV-044"),
        pytest.param({"stop": ["x" * 101]}, [long_stop(0, 101)], id="TV-045"),
        pytest.param({"stop": ["世" * 34]}, [long_stop(0, 102)], id="TV-047"),
        pytest.param({"stop": ["ok", "", "y" * 101]}, [empty_stop(1), long_stop(2, 101)], id="TV-049"),
        pytest.param({"stop": [""] * 5}, [FIVE_STOPS, *map(empty_stop, range(5))], id="TV-050"),
        pytest.param({"min_p": -0.1}, [out_of("min_p", "1.0", "at least 0.0", "-0.1")], id="TV-054"),
        pytest.param({"min_p": 1.1}, [out_of("min_p", "1.0", "at most 1.0", "1.1")], id="TV-055"),
        pytest.param(
            {"job_id": "", "prompt": "", "max_tokens": 0, "temperature": 3.0},
            [JOB_ID, PROMPT, MAX_TOKENS, out_of("temperature", "2.0", "at most 2.0", "3")],
            id="TV-056",
        ),
        pytest.param(
            {"job_id": "test", "prompt": "Hello", "top_p": 1.5, "repetition_penalty": 3.0}
            | {"stop": list("abcde"), "min_p": -0.1},
            [
                out_of("top_p", "1.0", "at most 1.0", "1.5"),
                out_of("repetition_penalty", "2.0", "at most 2.0", "3"),
                FIVE_STOPS,
                out_of("min_p", "1.0", "at least 0.0", "-0.1"),
            ],
            id="TV-057",
        ),
        pytest.param(
            {"job_id": "", "prompt": "", "max_tokens": 0, "temperature": 3.0, "top_p": 1.5}
            | {"repetition_penalty": 3.0, "stop": list("abcde"), "min_p": 1.5},
            [
                JOB_ID,
                PROMPT,
                MAX_TOKENS,
                out_of("temperature", "2.0", "at most 2.0", "3"),
                out_of("top_p", "1.0", "at most 1.0", "1.5"),
                out_of("repetition_penalty", "2.0", "at most 2.0", "3"),
                FIVE_STOPS,
                out_of("min_p", "1.0", "at most 1.0", "1.5"),
            ],
            id="TV-058",
        ),
        pytest.param({"job_id": "", "prompt": "", "max_tokens": 0}, [JOB_ID, PROMPT, MAX_TOKENS], id="TV-059"),
    ],
)
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
