"""The rules of our own fields, and how all rules come together."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.apis.pool.test_rules import MAX_TOKENS_OUT, errors
from tests.apis.pool.vectors import R0, body_of, violations, without
from tests.tables import cases
from tools.reference.openapi import document
from worker.apis.core.bodies import MAX_ERRORS, FieldError, encode_violations
from worker.apis.core.rules import MAX_BIASES
from worker.apis.pool.execute import ExecuteRequest, WrongShape, parse_execute
from worker.wire.jobs import narrow

VOCAB = 49_152
GRAMMAR = 'root ::= "a"'


def broken(sent: dict[str, Any], vocab_size: int | None = VOCAB) -> list[FieldError]:
    return violations(parse_execute(body_of(R0 | sent)), MAX_TOKENS_OUT, vocab_size, max_prompt_chars=32_768)


# ── words ────────────────────────────────────────────────────────────────────────────────────────


@cases
def test_a_broken_rule_is_reported_in_these_words(sent: dict[str, Any], expected: str) -> None:
    assert encode_violations(broken(sent)) == errors(expected)


def test_token_ids_are_not_held_to_a_vocabulary_that_is_unknown() -> None:
    sent = {"logit_bias": {"9999999999": 1}, "stop_token_ids": [2**32 - 1]}
    assert broken(sent, vocab_size=None) == []
    assert {error.constraint for error in broken(sent, vocab_size=8)} == {"vocabulary(8)"}


@pytest.mark.parametrize("key", ["", "-1", "+1", "1.0", "0x1", "01", " 1", "1\n", "٣", "1" * 11, "a" * 100_000])
def test_a_token_id_has_one_spelling(key: str) -> None:
    (error,) = broken({"logit_bias": {key: 1}}, vocab_size=None)
    assert error == FieldError(
        field="logit_bias",
        constraint="token_id",
        message="logit_bias entry 0 must be named by a token id in decimal",
    )


def test_a_max_tokens_out_of_range_does_not_make_min_tokens_wrong() -> None:
    assert [error.field for error in broken({"max_tokens": 0, "min_tokens": 5})] == ["max_tokens"]
    assert [error.field for error in broken({"max_tokens": 4096, "min_tokens": 2049})] == ["max_tokens", "min_tokens"]


@pytest.mark.long
def test_the_answer_to_a_flood_stays_small() -> None:
    biases = {f"x{i}": 1000 for i in range(100_000)}
    found = broken({"logit_bias": biases, "stop_token_ids": [2**32 - 1] * 100_000})
    assert len(found) == 2 * (1 + MAX_ERRORS)
    assert len(broken({"logit_bias": {str(i): 0 for i in range(MAX_BIASES)}})) == 0


# ── a prompt or messages ─────────────────────────────────────────────────────────────────────────

HI = {"role": "user", "content": "hi"}


def asked(sent: dict[str, Any]) -> list[tuple[str, str]]:
    request = parse_execute(body_of(without("prompt") | sent))
    return [(error.field, error.constraint) for error in violations(request, 2048, VOCAB, max_prompt_chars=5)]


def test_a_conversation_takes_the_place_of_the_prompt() -> None:
    assert asked({"messages": [HI], "chat_template_kwargs": {"a": 1}}) == []
    assert asked({"prompt": "hi", "messages": None, "chat_template_kwargs": None}) == []
    assert asked({"prompt": "hi", "messages": [HI], "chat_template_kwargs": {}}) == [
        ("messages", "exclusive(prompt)"),
        ("chat_template_kwargs", "exclusive(prompt)"),
    ]


def test_without_either_it_is_the_prompt_that_is_missing() -> None:
    without_either: list[dict[str, Any]] = [{}, {"messages": None}, {"chat_template_kwargs": {}}]
    for sent in without_either:
        with pytest.raises(WrongShape, match=r"missing field `prompt`$"):
            asked(sent)


def test_a_conversations_errors_come_last_with_their_places_and_echo_nothing() -> None:
    broken_ones = [{"role": "secret", "content": "secret"}, {"role": "user"}, HI]
    assert asked({"messages": broken_ones, "temperature": 3}) == [
        ("temperature", "range(0.0..=2.0)"),
        ("messages[0].role", "role"),
        ("messages[1].content", "required"),
    ]
    request = parse_execute(body_of(without("prompt") | {"messages": [*broken_ones, "secret" * 10]}))
    assert b"secret" not in encode_violations(violations(request, 2048, VOCAB, max_prompt_chars=5))
    assert asked({"messages": [HI, HI, HI]}) == [("messages", "length(1..=5)")]


# ── what is documented ───────────────────────────────────────────────────────────────────────────

REQUEST = document()["components"]["schemas"]["ExecuteRequest"]
BOUNDED = {
    name: schema
    for name, schema in REQUEST["properties"].items()
    if schema.keys() & {"minimum", "maximum"} and name not in {"max_tokens", "min_tokens", "top_k", "seed"}
}


@pytest.mark.parametrize("name", BOUNDED)
def test_the_documented_bounds_are_those_of_the_rules(name: str) -> None:
    schema = BOUNDED[name]
    step = 0.5 if schema.get("type") == "number" else 1
    for bound, beyond in (("minimum", -step), ("maximum", step)):
        if bound in schema and abs(schema[bound]) < 2**31 - 1:
            assert broken({name: schema[bound]}) == []
            assert [error.field for error in broken({name: schema[bound] + beyond})] == [name]


@pytest.mark.parametrize("name", ExecuteRequest.__struct_fields__)
def test_every_field_has_a_description_and_a_default_or_is_required(name: str) -> None:
    assert len(REQUEST["properties"][name]["description"]) > 20
    # A prompt is one of two that are required.
    assert ("default" in REQUEST["properties"][name]) != (name in {*REQUEST["required"], "prompt"})


def test_documented_defaults_are_what_an_absent_field_means() -> None:
    request = parse_execute(body_of({"job_id": "a", "prompt": "b", "max_tokens": 1}))
    for name, schema in REQUEST["properties"].items():
        if "default" in schema:
            default = schema["default"]
            assert (narrow(default) if isinstance(default, float) else default) == getattr(request, name)


# ── laws ─────────────────────────────────────────────────────────────────────────────────────────


def f32(least: float, most: float) -> st.SearchStrategy[float]:
    return st.floats(narrow(least), narrow(most), width=32)


def in_bounds(name: str) -> st.SearchStrategy[Any]:
    """Values of a number within its documented bounds."""
    least, most = BOUNDED[name].get("minimum", 0), BOUNDED[name].get("maximum", 2**31 - 1)
    return f32(least, most) if BOUNDED[name].get("type") == "number" else st.integers(least, most)


def out_of_bounds(name: str) -> st.SearchStrategy[Any]:
    least, most = BOUNDED[name].get("minimum", 0), BOUNDED[name].get("maximum", 2**31 - 1)
    if BOUNDED[name].get("type") == "number":
        return f32(most + 0.01, 1e30) | f32(-1e30, least - 0.01)
    below = st.integers(-(2**31), least - 1) if least < 0 else st.just(0) if least else st.nothing()
    return below | (st.integers(most + 1, 2**32 - 1) if most < 2**31 - 1 else st.nothing())


token_ids = st.integers(0, VOCAB - 1)
VALID: dict[str, st.SearchStrategy[Any]] = {
    **{name: in_bounds(name) for name in BOUNDED},
    "job_id": st.text(min_size=1, max_size=5),
    "prompt": st.text(min_size=1, max_size=5),
    "max_tokens": st.integers(10, MAX_TOKENS_OUT),
    "top_k": st.integers(0, 2**32 - 1),
    "stop": st.lists(st.text("ab世", min_size=1, max_size=33), max_size=4),
    "logit_bias": st.dictionaries(token_ids.map(str), f32(-100, 100), max_size=5),
    "ignore_eos": st.just(False),
    "min_tokens": st.integers(0, 10),
    "stop_token_ids": st.lists(token_ids, max_size=64),
    "grammar": st.none() | st.just(GRAMMAR),
    "json_schema": st.none() | st.sampled_from([{}, {"type": "object"}, True]),
    "regex": st.none() | st.just("[a-z]+"),
    "cache_salt": st.none() | st.text(min_size=1, max_size=256),
    "messages": st.none(),
    "chat_template_kwargs": st.none(),
}
BROKEN: dict[str, st.SearchStrategy[Any]] = {
    **{name: out_of_bounds(name) for name in BOUNDED},
    "job_id": st.just(""),
    "prompt": st.sampled_from(["", "x" * 32_769]),
    "max_tokens": st.just(0) | st.integers(MAX_TOKENS_OUT + 1, 2**32 - 1),
    "stop": st.sampled_from([[""], list("abcde"), ["x" * 101]]),
    "logit_bias": st.sampled_from([{"x": 0}, {str(VOCAB): 0}, {"1": 100.5}, {str(i): 0 for i in range(1025)}]),
    "min_tokens": st.integers(MAX_TOKENS_OUT + 1, 2**32 - 1),
    "stop_token_ids": st.sampled_from([[VOCAB], [0] * 65]),
    "grammar": st.sampled_from(["", "\t", "x" * 65_537, "root ::= \0"]),
    "json_schema": st.sampled_from([{"title": "x" * 65_537}, {"a": json.loads("[" * 64 + "]" * 64)}]),
    "regex": st.sampled_from(["", "\n", "x" * 65_537, "a\0"]),
    "cache_salt": st.sampled_from(["", "x" * 257]),
    "messages": st.just([HI]),
    "chat_template_kwargs": st.just({"a": 1}),
}
TABLE = [name for name in ExecuteRequest.__struct_fields__ if name in BROKEN]
REQUIRED = ("job_id", "prompt", "max_tokens")
valid_requests = st.fixed_dictionaries(
    {name: VALID[name] for name in REQUIRED},
    optional={name: values for name, values in VALID.items() if name not in REQUIRED},
)


def broken_values(names: set[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({name: BROKEN[name] for name in sorted(names)})


CONSTRAINTS = ("grammar", "json_schema", "regex")


def with_one_constraint(sent: dict[str, Any], keep: str | None = None) -> dict[str, Any]:
    """Several in one request would be one error more; the first one is kept where none is named."""
    given = [name for name in CONSTRAINTS if sent.get(name) is not None]
    kept = keep if keep is not None else next(iter(given), None)
    return {name: value for name, value in sent.items() if name not in given or name == kept}


def test_the_laws_leave_out_no_field() -> None:
    every = set(ExecuteRequest.__struct_fields__)
    assert every - set(VALID) == {"seed"}
    assert every - set(BROKEN) == {"seed", "top_k", "ignore_eos"}


@given(valid_requests)
def test_a_request_within_all_ranges_breaks_no_rule(sent: dict[str, Any]) -> None:
    assert (
        violations(parse_execute(body_of(with_one_constraint(sent))), MAX_TOKENS_OUT, VOCAB, max_prompt_chars=5) == []
    )


@pytest.mark.long
@given(valid_requests, st.sets(st.sampled_from(TABLE), min_size=1).flatmap(broken_values))
@settings(max_examples=300)
def test_broken_fields_are_reported_each_and_no_other_in_the_order_of_the_table(
    sent: dict[str, Any], wrong: dict[str, Any]
) -> None:
    keep = next((name for name in CONSTRAINTS if name in wrong), None)
    sent = with_one_constraint(sent, keep) | wrong
    found = violations(parse_execute(body_of(sent)), MAX_TOKENS_OUT, VOCAB, max_prompt_chars=5)
    fields = [error.field for error in found]
    assert list(dict.fromkeys(fields)) == [name for name in TABLE if name in wrong]
    assert fields == sorted(fields, key=TABLE.index)


secrets = st.text("#$%&", min_size=3, max_size=40)


@given(secrets, st.sampled_from(CONSTRAINTS))
def test_the_texts_of_constraints_are_never_echoed(secret: str, where: str) -> None:
    sent: dict[str, Any] = {
        "grammar": f"{secret}\0",
        "json_schema": {secret: json.loads("[" * 64 + "]" * 64), "title": secret},
        "regex": f"{secret}\0",
    }
    found = broken({where: sent[where]})
    assert found
    for error in found:
        assert secret not in error.message
        assert error.value is msgspec.UNSET
