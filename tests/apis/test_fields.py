"""A body in OpenAI's shape becomes the fields of `/execute`: fields are read, refused, or ignored."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.apis.asking import ASKED, TERMS, body, talk
from tests.apis.pool.vectors import OTHER_THAN_DEFAULTS
from tests.tables import cases
from worker.apis.chat.request import ChatRequest, read_chat
from worker.apis.completions.request import read_completion
from worker.apis.core.bodies import FieldError, FieldsRefused
from worker.apis.core.errors import NotAnObject, UnknownModel, error_detail
from worker.apis.core.fields import MAX_IGNORED, MAX_PREDICTION_CHARS, SHARED
from worker.apis.core.request import JobRequest, Request
from worker.apis.pool.execute import TEXT_ONLY
from worker.wire.jobs import JobKey
from worker.wire.messages import Overflow


def read(**fields: Any) -> Request:
    return read_chat(body(ASKED | fields), TERMS)


def refused(**fields: Any) -> FieldsRefused:
    with pytest.raises(FieldsRefused) as raised:
        read(**fields)
    return raised.value


@pytest.mark.parametrize("text", [b"", b"{", b"nothing", b'{"a":1}x', b"\xff", b'{"a":"\xff"}', b"[" * 100_000])
def test_a_body_that_is_not_json_is_refused_as_such(text: bytes) -> None:
    with pytest.raises(NotAnObject, match=r"^the body is (not JSON: .+|nested too deeply)$"):
        read_chat(text, TERMS)


@pytest.mark.parametrize("value", [None, 1, "text", [], [ASKED], True])
def test_a_body_that_is_not_an_object_is_refused_as_such(value: object) -> None:
    with pytest.raises(NotAnObject, match=r"^the body must be a JSON object$"):
        read_chat(msgspec.json.encode(value), TERMS)


GIVEN = OTHER_THAN_DEFAULTS | {"grammar": None, "regex": None, "cache_salt": "secret"}


def test_every_sampling_field_of_execute_is_one_here() -> None:
    assert set(GIVEN) == set(SHARED)
    fields = read(**GIVEN).params
    assert {name: getattr(fields, name) for name in GIVEN} == GIVEN | {"stop_token_ids": (8, 9)}


@pytest.mark.parametrize("name", sorted((*ChatRequest.__struct_fields__, *SHARED, "audio", "functions", "user")))
def test_null_counts_as_absent(name: str) -> None:
    """vLLM once answered `tool_choice: null` with an error."""
    if name != "messages":
        assert read(**{name: None}) == read()


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 15))
def test_a_signed_seed_keeps_its_bits_and_each_choice_adds_its_index(seed: int, index: int) -> None:
    asked = read(seed=seed, n=16)
    job = JobRequest(job_id="a", asked=asked, prompt="a", dialect=TEXT_ONLY, number=index)
    assert job.submit(JobKey(1)).sampling.seed == (seed + index) % 2**64


def test_a_stop_is_a_text_or_up_to_sixteen() -> None:
    assert read(stop="x").params.stop == ("x",)
    assert read(stop=["x"] * 16).params.stop == ("x",) * 16
    assert refused(stop=["x"] * 17).errors[0].constraint == "max_count(16)"
    assert refused(stop="").errors[0].constraint == "non_empty"


def test_both_names_of_the_limit_may_be_given_if_they_agree() -> None:
    assert read(max_tokens=5, max_completion_tokens=5).params.max_tokens == 5
    assert refused(max_tokens=5, max_completion_tokens=6).errors[0].field == "max_tokens"
    assert read().params.max_tokens == TERMS.max_tokens_out


@given(
    asked=st.integers(1, 2**63 - 1),
    min_tokens=st.integers(0, 2**32 - 1),
    room=st.integers(1, 2 * TERMS.max_tokens_out),
    name=st.sampled_from(["max_tokens", "max_completion_tokens"]),
)
def test_a_limit_larger_than_an_answer_can_have_is_cut_and_reported(
    asked: int, min_tokens: int, room: int, name: str
) -> None:
    """The `room` beside the prompt is known only after the engine has tokenized the prompt."""
    if min_tokens > asked:
        assert refused(**{name: asked, "min_tokens": min_tokens}).errors[0].field == "min_tokens"
        return
    found = read(**{name: asked, "min_tokens": min_tokens})
    most = min(asked, TERMS.max_tokens_out)
    assert (found.params.max_tokens, found.params.min_tokens) == (most, min(min_tokens, most))
    assert found.cut_to(room) == (min(most, room) if asked > min(most, room) else None)


def test_a_request_without_a_limit_reports_no_cut() -> None:
    assert read().cut_to(1) is None


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("n_tokens", [0, -1, -(2**40)])
def test_an_error_names_the_limit_as_the_client_spelled_it(name: str, n_tokens: int) -> None:
    error = refused(**{name: n_tokens}).errors[0]
    assert error.field == name
    assert error.message.startswith(f"{name} must be at ")


@cases
def test_a_field_without_effect_is_accepted_and_named(fields: dict[str, Any]) -> None:
    (name,) = fields
    asked = read(**fields)
    assert asked.ignored == (name,)
    assert replace(asked, ignored=()) == read()


def test_an_empty_list_of_tools_is_accepted_and_not_named() -> None:
    assert read(tools=[]) == read()


unknown = st.sampled_from(["cache_control", "annotations", "phase", "_backend", "x"])


def message(role: str, **rest: Any) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": "a"}], **rest}


@given(st.sampled_from(["stream_options", "response_format", "structured_outputs"]), unknown, st.integers() | st.none())
def test_unknown_members_of_a_field_are_named_unless_they_are_null(field: str, name: str, value: object) -> None:
    known = {"type": "text"} if field == "response_format" else {}
    given_fields = {field: {**known, name: value}, "stream": True}
    assert read(**given_fields).ignored == (() if value is None else (f"{field}.{name}",))


@given(
    st.lists(unknown, unique=True), st.lists(unknown, unique=True), st.lists(unknown, unique=True), st.integers(1, 3)
)
def test_unknown_members_of_messages_parts_and_calls_are_named_once_each(
    of_message: list[str], of_part: list[str], of_call: list[str], n_turns: int
) -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}} | dict.fromkeys(of_call, 1)
    asked = {**message("user"), **dict.fromkeys(of_message, "ephemeral")}
    asked["content"][0] |= dict.fromkeys(of_part, True)
    turn = [asked, message("assistant", tool_calls=[call]), message("tool", tool_call_id="1", refusal=None)]
    read_turns = read(messages=turn * n_turns)
    wanted = {
        *(f"messages.{name}" for name in of_message),
        *(f"messages.content.{name}" for name in of_part),
        *(f"messages.tool_calls.{name}" for name in of_call),
    }
    assert len(read_turns.ignored) == len(wanted)
    assert set(read_turns.ignored) == wanted
    plain = [message("user"), message("assistant", tool_calls=[{"id": "1", "function": call["function"]}])]
    assert talk(read_turns) == talk(read(messages=[*plain, message("tool", tool_call_id="1")] * n_turns))


def test_a_prefix_is_named_if_it_has_no_effect() -> None:
    begun = message("assistant", prefix=True)
    assert read(messages=[message("user"), begun, message("user")]).ignored == ("messages.prefix",)
    assert read(messages=[message("user"), begun]).ignored == ()
    assert read(messages=[message("user"), message("assistant", prefix=False)]).ignored == ()


@pytest.mark.parametrize("others", [{}, {"continue_final_message": False}, {"add_generation_prompt": False}])
def test_a_prefix_continues_the_final_message(others: dict[str, Any]) -> None:
    said = [message("user"), message("assistant")]
    goes_on = talk(read(messages=said, continue_final_message=True))
    assert talk(read(messages=[message("user"), message("assistant", prefix=True)], **others)) == goes_on


@cases
def test_an_impossible_prefix_is_refused_by_its_place(fields: dict[str, Any], constraint: str) -> None:
    (error,) = refused(**fields).errors
    assert (error.field, error.constraint) == ("messages[0].prefix", constraint)
    assert error.message.startswith("messages[0].prefix ")


def test_a_routers_own_fields_are_named_and_have_no_effect() -> None:
    """The fields that vllm-router 0.1.17 adds to every request."""
    ours = {"ignore_eos": False, "continue_final_message": False, "logprobs": False, "stream": False}
    names = ("no_stop_trim", "skip_special_tokens", "separate_reasoning", "stream_reasoning", "return_hidden_states")
    asked = read(**ours, **dict.fromkeys(names, False))
    assert asked.ignored == names
    assert asked.params == read().params
    assert talk(asked) == talk(read())


@cases
def test_a_name_that_no_header_can_have_is_named_too(name: str, shown: str) -> None:
    assert read(**{name: 1}).ignored == (shown,)


@given(st.lists(st.text(max_size=80).map("~".__add__), max_size=60))
def test_the_names_of_ignored_fields_fit_into_a_header(names: list[str]) -> None:
    """No field that is known begins like these."""
    ignored = read_chat(msgspec.json.encode(dict.fromkeys(names, 1) | ASKED | {"zzz": 1}), TERMS).ignored
    assert len(ignored) <= MAX_IGNORED
    assert bool(names) == any(name.startswith("~") for name in ignored)
    header = ", ".join(ignored)
    assert header.isascii()
    assert header.isprintable()


def test_all_errors_are_reported_at_once_and_no_value_is_quoted() -> None:
    secret = "Mellifluous xylophone"
    error = refused(temperature=secret, messages=[{"role": secret, "content": [{"type": secret}]}], stop=[secret] * 17)
    assert len(error.errors) >= 3
    assert secret not in str(error)


def test_another_model_is_refused_only_with_strict_model() -> None:
    without, other, named = (read(**asked) for asked in ({}, {"model": "gpt-4"}, {"model": "toy"}))
    assert [asked.model for asked in (without, other, named)] == [None, "gpt-4", "toy"]
    for asked in (other, named):
        assert replace(asked, model=None) == without
    strict = replace(TERMS, is_strict=True)
    with pytest.raises(UnknownModel, match=r"^model 'gpt-4' not found; this worker serves 'toy'$"):
        read_chat(body(ASKED | {"model": "gpt-4"}), strict)
    with pytest.raises(UnknownModel) as raised:
        read_chat(body(ASKED | {"model": "\n" * 10_000}), strict)
    assert len(str(raised.value)) < 200
    assert str(raised.value).isprintable()
    read_chat(body(ASKED | {"model": "toy"}), strict)


@given(st.text(max_size=9), st.none() | st.just({"enable_thinking": True}))
def test_an_effort_that_the_template_does_not_read_is_named_and_has_no_effect(
    effort: str, told: dict[str, Any] | None
) -> None:
    terms = replace(TERMS, template_keys=TERMS.template_keys - {"reasoning_effort"})
    fields = ASKED | {"chat_template_kwargs": told}
    asked = read_chat(body(fields | {"reasoning_effort": effort}), terms)
    assert asked.ignored == ("reasoning_effort",)
    assert talk(asked) == talk(read_chat(body(fields), terms))
    assert read_chat(body(fields | {"reasoning_effort": effort}), TERMS).ignored == ()


def test_the_template_gets_the_effort_and_its_other_variables() -> None:
    prompt = talk(read(reasoning_effort="low", chat_template_kwargs={"enable_thinking": False}))
    assert msgspec.json.decode(prompt.template_kwargs) == {"reasoning_effort": "low", "enable_thinking": False}
    assert prompt.add_generation_prompt
    goes_on = talk(read(continue_final_message=True, messages=[{"role": "assistant", "content": "So"}]))
    assert (goes_on.add_generation_prompt, goes_on.continue_final_message) == (False, True)


# ── predictions ──────────────────────────────────────────────────────────────────────────────────


def predicted(content: object) -> dict[str, Any]:
    return {"prediction": {"type": "content", "content": content}}


@given(st.lists(st.text(), max_size=4))
def test_a_prediction_is_a_text_or_its_parts_and_changes_nothing_else(texts: list[str]) -> None:
    parts = [{"type": "text", "text": text} for text in texts]
    asked = read_chat(msgspec.json.encode(ASKED | predicted(parts)), TERMS)
    assert asked == read_chat(msgspec.json.encode(ASKED | predicted("".join(texts))), TERMS)
    assert asked.prediction == "".join(texts)
    assert asked.ignored == ()
    assert replace(asked, prediction="") == read()


def test_completions_take_a_prediction_too() -> None:
    asked = read_completion(body({"prompt": "a"} | predicted("b")), TERMS)
    assert asked.prediction == "b"


def test_a_prediction_is_named_if_nothing_is_drafted_from_texts() -> None:
    terms = replace(TERMS, takes_predictions=False)
    asked = read_chat(body(ASKED | predicted("b")), terms)
    assert (asked.prediction, asked.ignored) == ("", ("prediction",))
    assert read_chat(body(ASKED | predicted("")), terms) == read()


def test_unread_members_of_a_prediction_are_named() -> None:
    part = {"type": "text", "text": "b", "cache_control": {}}
    asked = read(prediction={"type": "content", "content": [part], "id": 1})
    assert asked.ignored == ("prediction.content.cache_control", "prediction.id")


@pytest.mark.parametrize("content", ["x" * (MAX_PREDICTION_CHARS + 1), [{"type": "text", "text": "x" * 70_000}] * 2])
def test_a_prediction_is_bounded(content: object) -> None:
    (error,) = refused(**predicted(content)).errors
    assert (error.field, error.constraint) == ("prediction.content", f"length(..={MAX_PREDICTION_CHARS})")


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("field", ["messages", "prompt"])
@pytest.mark.parametrize("rule", ["context_length", "max_tokens_in"])
@given(most=st.integers(1, 10**6), n_more=st.integers(0, 10**6))
def test_an_overflow_has_openais_words_and_both_numbers(field: str, rule: str, most: int, n_more: int) -> None:
    """This error comes before any other fault of the request."""
    n_tokens = most + n_more
    errors = [
        FieldError(field=field, constraint=f"{rule}({most})", message="in the words of /execute"),
        FieldError(field="regex", constraint="regex", message="regex is no regular expression"),
    ]
    told = error_detail(FieldsRefused(errors, Overflow(n_tokens, most)))
    assert (told.code, told.param, told.type) == ("context_length_exceeded", field, "invalid_request_error")
    words = f"This model's maximum context length is {most} tokens. However, your {field} resulted in {n_tokens} tokens"
    assert told.message.startswith(words)
    assert "regex is no" in told.message
    assert "/execute" not in told.message
