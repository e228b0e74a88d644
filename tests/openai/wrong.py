"""Wrong requests at the `/v1` door, each with what its refusal says; for the readers and for the whole worker alike."""

import functools
import json
from dataclasses import dataclass
from typing import Any

from tests.front.rehearsal import FACTS
from worker.openai.fields import MAX_PREDICTION_CHARS

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SECRET = "mellifluous xylophone"
"""Stands in every prompt, and nowhere in an answer or in the log."""

TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
N_VOCAB, N_CONTEXT = FACTS.vocab_size, FACTS.context_length

Body = dict[str, Any]


def talk(text: str) -> list[Body]:
    """A conversation of one turn."""
    return [{"role": "user", "content": text}]


ASKED = talk(SECRET)
BODIES: dict[str, Body] = {
    CHAT: {"model": "any", "messages": ASKED, "max_tokens": 4},
    COMPLETIONS: {"model": "any", "prompt": SECRET, "max_tokens": 4},
    TOKENIZE: {"content": SECRET},
    DETOKENIZE: {"tokens": [1, 2, 3]},
    f"{CHAT}/render": {"model": "any", "messages": ASKED},
    f"{COMPLETIONS}/render": {"model": "any", "prompt": SECRET},
}

ABSENT = object()


@dataclass(frozen=True, slots=True)
class Wrong:
    """A request and what its refusal says."""

    path: str
    body: bytes
    param: str | None
    status: int = 400
    code: str | None = None
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)


def changed(path: str, *, param: str | None, code: str | None = None, **change: Any) -> Wrong:
    """A right request with some fields changed or, where they are ABSENT, left out."""
    body = {name: value for name, value in (BODIES[path] | change).items() if value is not ABSENT}
    return Wrong(path, json.dumps(body).encode(), param, code=code)


@dataclass(frozen=True, slots=True)
class Inside:
    """A value that is wrong at a place inside it."""

    value: object
    place: str


def each(path: str, field: str, *values: object, code: str | None = None) -> list[Wrong]:
    places = [(value.value, value.place) if isinstance(value, Inside) else (value, "") for value in values]
    return [changed(path, param=f"{field}{place}", code=code, **{field: value}) for value, place in places]


def message(*messages: object, param: str) -> Wrong:
    return changed(CHAT, param=param, messages=list(messages))


def said(value: object, param: str = "messages[0].content") -> Wrong:
    return message({"role": "user", "content": value, "name": SECRET}, param=param)


SAMPLING: dict[str, tuple[object, ...]] = {
    "temperature": ("hot", -0.1, 2.1, [0.5], True),
    "top_p": ("x", -0.1, 1.1),
    "top_k": ("x", -2, 1.5),
    "min_p": ("x", -0.1, 1.1),
    "typical_p": (-0.1, 1.1),
    "top_n_sigma": (-1, 101),
    "repetition_penalty": ("x", -0.1, 2.1),
    "repeat_last_n": (-2, "x"),
    "presence_penalty": ("x", -2.1, 2.1),
    "frequency_penalty": ("x", -2.1, 2.1),
    "xtc_probability": (-0.1, 1.1),
    "xtc_threshold": (-0.1, 1.1),
    "dry_multiplier": (-1, "x"),
    "dry_base": (0.5, 17),
    "dry_allowed_length": (0, 2049),
    "min_tokens": (-1, 5, "x"),
    "ignore_eos": ("x", 1),
    "stop_token_ids": ("x", Inside([-1], "[0]"), [N_VOCAB], [1] * 65, Inside([1.5], "[0]")),
    "logit_bias": ([], "x", {"x": 1}, Inside({"1": "a"}, "[...]"), {"1": 101}, {str(N_VOCAB): 1}),
    "seed": ("x", 1.5, 2**63, -(2**63) - 1),
    "n": (0, 17, "two", 1.5, True),
    "max_tokens": (-1, "4", 1.5),
    "stop": (5, Inside([5], "[0]"), {"a": 1}, ["x"] * 17, [""], ["x" * 101]),
    "stream": ("yes", 1),
    "grammar": (5, "", "x\0"),
    "regex": (5, ""),
    "json_schema": ("x", 5, []),
    "guided_json": ("x", "[]", 5, []),
    "guided_regex": (5, ""),
    "guided_choice": ("x", 5, [], ["x\0"]),
    "guided_grammar": (5, "", "x\0"),
    "structured_outputs": ("x", 5, []),
    "prediction": (SECRET, 5, []),
}
"""Fields of chat and of completions alike."""

TOOL: Body = {"type": "function", "function": {"name": "f"}}


def function(name: str = "f", **members: object) -> Body:
    """A tool."""
    return {"type": "function", "function": {"name": name, **members}}


NESTED: Body = functools.reduce(lambda inner, _: {"not": inner}, range(70), {})
"""A schema that is nested too deeply."""

CHAT_FIELDS: dict[str, tuple[object, ...]] = {
    "messages": (ABSENT, None, [], SECRET, {}, 5),
    "max_tokens": (0,),
    "logprobs": (5, "x"),
    "stream_options": ("x", 5, []),
    "tools": (
        *("x", {}, [TOOL] * 513),
        *(Inside([value], "[0]") for value in (5, "f", None)),
        Inside([{}], "[0].function"),
        Inside([{**TOOL, "function": None}], "[0].function"),
        Inside([{**TOOL, "function": "f"}], "[0].function"),
        *(Inside([function(name)], "[0].function.name") for name in ("", "a b", "é", "f\n", "x" * 129)),
        Inside([{"type": "function", "function": {}}], "[0].function.name"),
        Inside([TOOL, TOOL], "[1].function.name"),
        Inside([{**TOOL, "type": 5}], "[0].type"),
        Inside([function(parameters="x")], "[0].function.parameters"),
        Inside([function(parameters=[])], "[0].function.parameters"),
        Inside([function(parameters=NESTED)], "[0].function.parameters"),
        Inside([function(parameters={"type": "string"})], "[0].function.parameters.type"),
        Inside([function(parameters={"properties": []})], "[0].function.parameters.properties"),
        Inside([function(strict="x")], "[0].function.strict"),
        Inside([function(description=5)], "[0].function.description"),
    ),
    "tool_choice": ("required", "f", 5, [], {"type": "function", "function": {"name": "f"}}),
    "parallel_tool_calls": ("x", 1),
    "reasoning_effort": (5,),
    "reasoning_format": (5,),
    "thinking": ("x", 5),
    "thinking_token_budget": ("x", -1, 1.5),
    "thinking_budget_tokens": ("x", -1),
    "chat_template_kwargs": ("x", []),
    "add_generation_prompt": ("x", 1),
    "continue_final_message": ("x", 1),
    "model": (5, []),
}

COMPLETION_FIELDS: dict[str, tuple[object, ...]] = {
    "prompt": (
        *(ABSENT, None, "", [], 5, {}, [1, "a"], ["a", [1]], [[1], 5], [-1], [N_VOCAB], ["a"] * 129),
        *(Inside([value], "[0]") for value in ("", [], True, 1.5, [N_VOCAB])),
        *(Inside(["a", ""], "[1]"), Inside([[1], [2.5]], "[1]")),
    ),
    "echo": ("x", 1),
    "logprobs": ("x", -1, 21, True),
    "prompt_logprobs": ("x", 21),
    "best_of": (2, "x"),
    "suffix": (SECRET, 5),
    "max_tokens": (0,),
}

NOT_HERE = "unsupported_parameter"
UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "audio": ({"voice": "a", "format": "wav"},),
    "modalities": (["text", "audio"], "x"),
    "web_search_options": ({},),
    "functions": ([{"name": "f"}],),
    "function_call": ("auto",),
    "prompt_logprobs": (1,),
    "store": (True, "x"),
    "suffix": ("x",),
    "guided_whitespace_pattern": (" ?",),
    "structural_tag": ({"type": "structural_tag"},),
}
"""Fields of chat that are known, and not supported."""

FIELDS = [
    *(
        wrong
        for path in (CHAT, COMPLETIONS)
        for field, values in SAMPLING.items()
        for wrong in each(path, field, *values)
    ),
    *(wrong for field, values in CHAT_FIELDS.items() for wrong in each(CHAT, field, *values)),
    *(wrong for field, values in COMPLETION_FIELDS.items() for wrong in each(COMPLETIONS, field, *values)),
    *(
        changed(CHAT, param="max_completion_tokens", max_tokens=ABSENT, max_completion_tokens=value)
        for value in (0, -1, "x", 1.5)
    ),
    *(changed(CHAT, param="top_logprobs", logprobs=True, top_logprobs=value) for value in (-1, 21, "x", 1.5)),
    *(changed(TOKENIZE, param="prompt", content=value) for value in (ABSENT, None)),
    changed(TOKENIZE, param="prompt", prompt=SECRET),
    *each(TOKENIZE, "prompt", 5, [SECRET]),
    *each(TOKENIZE, "add_special", "x", 1),
    *each(TOKENIZE, "content", 5, [SECRET], {}),
    *each(DETOKENIZE, "tokens", ABSENT, None, SECRET, 5, {}, [-1], [N_VOCAB]),
    *each(DETOKENIZE, "tokens", *(Inside([value], "[0]") for value in (1.5, True, "1", [1]))),
    *(wrong for field, values in UNSUPPORTED.items() for wrong in each(CHAT, field, *values, code=NOT_HERE)),
    *each(f"{CHAT}/render", "messages", ABSENT, [], 5),
    *each(f"{COMPLETIONS}/render", "prompt", ABSENT, None, [], 5),
]

MESSAGES = [
    message(SECRET, param="messages[0]"),
    message(5, param="messages[0]"),
    message(None, param="messages[0]"),
    message([], param="messages[0]"),
    message(*ASKED, 5, param="messages[1]"),
    message({"content": SECRET}, param="messages[0].role"),
    message({"role": None, "content": SECRET}, param="messages[0].role"),
    message({"role": 5, "content": SECRET}, param="messages[0].role"),
    message({"role": "robot", "content": SECRET}, param="messages[0].role"),
    message({"role": "user"}, param="messages[0].content"),
    message({"role": "system", "content": None}, param="messages[0].content"),
    message(*ASKED, {"role": "assistant", "content": 5}, *ASKED, param="messages[1].content"),
    message({"role": "user", "content": SECRET, "prefix": True}, param="messages[0].prefix"),
    message({"role": "assistant", "content": SECRET, "prefix": "x"}, param="messages[0].prefix"),
    said(None),
    said(5),
    said(value=True),
    said({}),
    said([SECRET], "messages[0].content[0]"),
    said([5], "messages[0].content[0]"),
    said([{}], "messages[0].content[0].type"),
    said([{"type": 5}], "messages[0].content[0].type"),
    said([{"type": SECRET}], "messages[0].content[0].type"),
    said([{"type": "text"}], "messages[0].content[0].text"),
    said([{"type": "text", "text": 5}], "messages[0].content[0].text"),
    said([{"type": "text", "text": None}], "messages[0].content[0].text"),
    said([{"type": "image_url", "image_url": {"url": "data:,"}}], "messages[0].content[0].type"),
    said([{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}], "messages[0].content[0].type"),
    said([{"type": "file", "file": {}}], "messages[0].content[0].type"),
]

FORMATS = [
    changed(CHAT, param=f"response_format{place}", code=code, response_format=value)
    for value, place, code in (
        ("json", "", "invalid_type"),
        (5, "", "invalid_type"),
        ([], "", "invalid_type"),
        ({}, ".type", "missing_required_parameter"),
        ({"type": 5}, ".type", "invalid_type"),
        ({"type": "xml"}, ".type", "invalid_value"),
        ({"type": "structural_tag"}, ".type", "invalid_value"),
        ({"type": "json_schema"}, ".json_schema.schema", "missing_required_parameter"),
        ({"type": "json_schema", "json_schema": 5}, ".json_schema", "invalid_type"),
        ({"type": "json_schema", "json_schema": {}}, ".json_schema.schema", "missing_required_parameter"),
        ({"type": "json_schema", "json_schema": {"schema": []}}, ".json_schema.schema", "invalid_type"),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": 5}}, ".json_schema.schema", "invalid_type"),
    )
]

OPTIONS = [
    changed(path, param=f"structured_outputs.{name}", code=NOT_HERE, structured_outputs={"json": {}, name: value})
    for path in (CHAT, COMPLETIONS)
    for name, value in (
        ("structural_tag", "x"),
        ("whitespace_pattern", "[ ]?"),
        ("disable_any_whitespace", True),
        ("disable_additional_properties", True),
    )
]
"""Options of structured outputs that cannot be kept."""

CONFLICTS = [
    changed(CHAT, param="regex", grammar='root ::= "a"', regex="a"),
    changed(CHAT, param="json_schema", grammar='root ::= "a"', json_schema={}),
    changed(COMPLETIONS, param="regex", json_schema={}, regex="a"),
    changed(CHAT, param="ignore_eos", ignore_eos=True, regex="a"),
    changed(CHAT, param="regex", response_format={"type": "json_object"}, regex="a"),
    changed(CHAT, param="guided_choice", response_format={"type": "json_object"}, guided_choice=["a"]),
    changed(COMPLETIONS, param="guided_json", regex="a", guided_json={}),
    changed(CHAT, param="structured_outputs.regex", structured_outputs={"json": {}, "regex": "a"}),
    changed(COMPLETIONS, param="structured_outputs.choice", structured_outputs={"choice": []}),
    changed(CHAT, param="ignore_eos", ignore_eos=True, guided_choice=["a"]),
    *(
        changed(path, param=f"prediction.{name}", prediction={"type": "content", "content": SECRET} | wrong)
        for path in (CHAT, COMPLETIONS)
        for name, wrong in (
            ("type", {"type": "image"}),
            ("type", {"type": 5}),
            ("content", {"content": 5}),
            ("content", {"content": "x" * (MAX_PREDICTION_CHARS + 1)}),
            ("content[0].type", {"content": [{"type": "image_url"}]}),
            ("content[0].text", {"content": [{"type": "text"}]}),
        )
    ),
    changed(CHAT, param="prediction.content", prediction={"type": "content"}),
    changed(CHAT, param="prediction.type", prediction={"content": SECRET}),
    changed(CHAT, param="json_schema", response_format={"type": "json_object"}, json_schema={}),
    changed(COMPLETIONS, param="n", prompt=["a"] * 65, n=2),
    changed(COMPLETIONS, param="prompt_logprobs", prompt_logprobs=1, stream=True),
    changed(CHAT, param="continue_final_message", continue_final_message=True),
    changed(CHAT, param="top_logprobs", top_logprobs=3),
    changed(CHAT, param="top_logprobs", logprobs=False, top_logprobs=3),
    changed(CHAT, param="max_tokens", max_tokens=4, max_completion_tokens=5),
    changed(CHAT, param="stream_options.include_usage", stream=True, stream_options={"include_usage": 1}),
    changed(CHAT, param="continue_final_message", continue_final_message=True, add_generation_prompt=True),
]

OF_THE_ENGINE = [
    changed(CHAT, param="prediction", prediction={"type": "content", "content": f"unreadable {SECRET}"}),
    said(f"unreadable {SECRET}", "messages"),
    changed(COMPLETIONS, param="prompt", prompt=f"unreadable {SECRET}"),
    changed(TOKENIZE, param="content", content=f"unreadable {SECRET}"),
    changed(TOKENIZE, param="prompt", content=ABSENT, prompt=f"unreadable {SECRET}"),
    changed(
        CHAT, param="messages", code="context_length_exceeded", messages=[{"role": "user", "content": "x" * N_CONTEXT}]
    ),
    changed(COMPLETIONS, param="prompt", code="context_length_exceeded", prompt="x" * N_CONTEXT),
    changed(COMPLETIONS, param="prompt", code="context_length_exceeded", prompt=[1] * N_CONTEXT),
]
"""Requests that only an engine can refuse; the toy reads no "unreadable" text."""

NOT_OBJECTS = (b"", b"[]", b'"x"', b"null", b"5", b"true", b"{", b'{"a":1}{', b"\xff", b'{"messages":', b"{'a':1}")

SHAPES = [
    *(Wrong(path, body, None) for path in (CHAT, COMPLETIONS) for body in NOT_OBJECTS),
    *(Wrong(path, b"[]", None) for path in BODIES),
    *(Wrong(path, b"[" * 5000, None) for path in BODIES),
]

OF_THE_ROUTES = [
    Wrong(CHAT, json.dumps(BODIES[CHAT]).encode(), None, 415, headers=(("content-type", "text/plain"),)),
    Wrong(CHAT, b'{"model": "' + b"x" * 3_000_000 + b'"}', None, 413),
    Wrong("/v1/models/another", b"", None, 405),
]

OF_THE_READERS = [*FIELDS, *MESSAGES, *FORMATS, *OPTIONS, *CONFLICTS, *SHAPES]
ALL = [*OF_THE_READERS, *OF_THE_ENGINE, *OF_THE_ROUTES]


def name_of(wrong: Wrong) -> str:
    return f"{wrong.path.removeprefix('/v1')}-{wrong.param}-{wrong.body[-24:]!r}"
