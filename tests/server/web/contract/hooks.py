"""The facts about requests for text that schemathesis needs in addition to the OpenAPI document; schemathesis.toml
loads it.

A JSON schema does not say how fields depend on each other, on the model's vocabulary, or how many bytes a text has:
what is generated as valid is made so here. And JSON lines are held to the schema, which schemathesis does for SSE only.
"""

import json
from collections.abc import Iterator
from functools import cache
from itertools import cycle
from typing import Any

import schemathesis
from jsonschema import Draft202012Validator

Fields = dict[str, Any]
AnyCase = schemathesis.Case[Any]

SSE = "text/event-stream"
JSON_LINES = ("application/jsonl", "application/x-ndjson")
VOCABULARY = 49_152
"""The default model's."""
LONGEST_STOP = 100
VALID_CONSTRAINTS: Fields = {
    "grammar": 'root ::= "a"',
    "json_schema": {"type": "boolean"},
    "regex": "a",
    "guided_json": {"type": "boolean"},
    "guided_regex": "a",
    "guided_choice": ["a", "b"],
    "guided_grammar": 'root ::= "a"',
    "structured_outputs": {"json_object": True},
}
"""A request has at most one of them."""
VALID_MESSAGES = [{"role": "user", "content": "Hello"}]
FITTING_PROMPT = 100
"""Bytes, and so at most tokens, for which the worker of the test has room."""

OPENAI_PATHS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/chat/completions/render", "/v1/completions/render"),
    *("/tokenize", "/detokenize"),
)
_INPUT = {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]}
AGENT_BODIES: dict[str, Fields] = {
    "/v1/responses": {**_INPUT, "max_output_tokens": 4},
    "/v1/responses/input_tokens": _INPUT,
    "/v1/messages": {"messages": VALID_MESSAGES, "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": VALID_MESSAGES},
}
"""Conversations of the protocols that agents speak; the tests by hand have other ones."""
UNSUPPORTED_OF_AGENTS = (
    *("conversation", "include", "output_config", "output_format", "previous_response_id", "prompt"),
    *("stop_sequences", "text", "thinking", "tool_choice", "tools", "system"),
)
"""Fields with values that only some requests allow."""
MAX_PROMPTS = 3
"""There is room for few jobs."""
UNSUPPORTED = (
    *("audio", "function_call", "functions", "modalities", "moderation", "prediction", "store", "suffix"),
    *("use_beam_search", "verbosity", "web_search_options", "tools", "tool_choice", "best_of"),
    *("return_token_strs", "with_pieces", "chat_template_kwargs", "continue_final_message", "add_generation_prompt"),
    *("max_completion_tokens", "prompt_logprobs", "reasoning_effort"),
)
"""Fields with values that only some requests, templates or models allow; the tests by hand have them."""

_media_types = cycle((SSE, *JSON_LINES))


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: AnyCase, kwargs: Fields) -> None:
    is_valid = case.meta is not None and case.meta.generation.mode.is_positive
    if case.path == "/execute":
        case.headers["Accept"] = next(_media_types)
    if is_valid and isinstance(case.body, dict):
        if case.path == "/execute":
            case.body = _consistent(case.body)
        elif case.path in OPENAI_PATHS:
            case.body = _consistent_here(case.body)
        elif case.path in AGENT_BODIES:
            case.body = _consistent_of_an_agent(case.body) | AGENT_BODIES[case.path]


def _consistent(request: Fields) -> Fields:
    """A request that the schema allows as one that every rule allows."""
    request = {name: _whole(value) for name, value in request.items()}
    if request.get("messages") is None:
        request["prompt"] = _of_bytes(request["prompt"], FITTING_PROMPT)
    else:
        # Not every message can be gone on with.
        request["messages"] = [_short(message) | {"prefix": None} for message in request["messages"][:3]]
        request.pop("chat_template_kwargs", None)  # the default model's template has no names for them
    return _made_valid(request)


def _made_valid(request: Fields) -> Fields:
    """The common part of the two kinds of requests."""
    given = [name for name in VALID_CONSTRAINTS if request.get(name) is not None]
    request |= {name: VALID_CONSTRAINTS[name] if name == given[0] else None for name in given}
    if given:
        request["ignore_eos"] = False
    if "min_tokens" in request:
        request["min_tokens"] = min(request["min_tokens"], request["max_tokens"])
    if "stop" in request:
        request["stop"] = [_of_bytes(text, LONGEST_STOP) for text in request["stop"]]
    if "stop_token_ids" in request:
        request["stop_token_ids"] = [token % VOCABULARY for token in request["stop_token_ids"]]
    if "logit_bias" in request:
        # The boundary cases that schemathesis tries first know nothing of `propertyNames`.
        biases = {name: bias for name, bias in request["logit_bias"].items() if name.isdecimal()}
        request["logit_bias"] = {str(int(name) % VOCABULARY): bias for name, bias in biases.items()}
    return request


def _consistent_here(request: Fields) -> Fields:
    """The same of a request in OpenAI's shape, in which null is as absent."""
    request = {name: _whole(value) for name, value in request.items() if value is not None and name not in UNSUPPORTED}
    if "messages" in request:
        request["messages"] = VALID_MESSAGES
        request.pop("prompt", None)
        request.pop("content", None)
    elif "prompt" in request:
        request["prompt"] = _prompt(request["prompt"])
        request.pop("content", None)
    if "tokens" in request:
        request["tokens"] = [token % VOCABULARY for token in request["tokens"]]
    if "response_format" in request:
        request["response_format"] = {"type": "json_object"}
        for name in VALID_CONSTRAINTS:
            request.pop(name, None)
        request.pop("ignore_eos", None)
    if not request.get("logprobs"):
        request.pop("top_logprobs", None)
    elif "prompt" in request:
        request["logprobs"] = int(request["logprobs"])
    if "n" in request:
        request["n"] = 1
    if isinstance(request.get("stop"), str):
        request["stop"] = [request["stop"]]
    request.setdefault("max_tokens", 4)
    request["max_tokens"] = max(1, request["max_tokens"])
    return _made_valid(request)


def _consistent_of_an_agent(request: Fields) -> Fields:
    """The same of a request of an agent."""
    kept = {name: _whole(value) for name, value in request.items() if name not in UNSUPPORTED_OF_AGENTS}
    given = {name: value for name, value in kept.items() if value is not None}
    return {name: value for name, value in _made_valid({**given, "max_tokens": 4}).items() if name != "max_tokens"}


def _prompt(prompt: Any) -> Any:
    if isinstance(prompt, str):
        return _of_bytes(prompt, FITTING_PROMPT)
    if isinstance(prompt[0], int):
        return [token % VOCABULARY for token in prompt[:FITTING_PROMPT]]
    return [_prompt(one) for one in prompt[:MAX_PROMPTS]]


def _short(value: Any) -> Any:
    """A few messages of a few words; what a schema names as constants is shorter."""
    match value:
        case str():
            return _of_bytes(value, len("assistant"))
        case list():
            return [_short(item) for item in value[:3]]
        case dict():
            return {name: _short(inner) for name, inner in value.items()}
        case _:
            return value


def _whole(value: Any) -> Any:
    """The value with whole floats as integers. In a JSON schema 2.0 is an integer, but legacy workers and ours refuse
    it.
    """
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _of_bytes(text: str, most: int) -> str:
    return text.encode()[:most].decode(errors="ignore") or "x"


@schemathesis.check
def lines_are_events(context: schemathesis.CheckContext, response: schemathesis.Response, case: AnyCase) -> None:
    """Every line of a stream of JSON lines is an event by the schema, and the last one is terminal."""
    media_type = response.headers.get("content-type", [""])[0]
    if media_type not in JSON_LINES:
        return
    events = [json.loads(line) for line in response.content.decode().removesuffix("\n").split("\n")]
    assert events[-1]["type"] in {"end", "error"}
    for event in events:
        for error in _errors(case, event):
            raise AssertionError(f"{event}: {error}")


def _errors(case: AnyCase, event: Fields) -> Iterator[str]:
    document = case.operation.schema.raw_schema
    return (error.message for error in _validator(json.dumps(document["components"])).iter_errors(event))


@cache
def _validator(components: str) -> Draft202012Validator:
    return Draft202012Validator({"components": json.loads(components), "$ref": "#/components/schemas/Event"})
