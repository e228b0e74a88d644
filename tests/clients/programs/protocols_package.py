"""Responses and Messages in the eyes of the packages `openai`, `anthropic` and `openresponses-types`: `python
protocols_package.py URL` tries all of it.

Every body and every event must be what the types of the packages say, strictly, with no key that they do not know.
Alone but for its requests, as it runs in an environment that has nothing but the packages.
"""

import json
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import anthropic
import openai
import openresponses_types
import pydantic
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from openai.types.responses import Response, ResponseStreamEvent

QUESTION = "What is the capital of France? Answer in one sentence."
OPEN = {"Response.store", "Response.frequency_penalty", "Response.presence_penalty"}
"""Keys that Open Responses requires and that OpenAI's package does not know."""

GREEDY = {"model": "any", "temperature": 0}
REQUESTS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text())
"""The requests to each protocol, by what they are about."""
USER = {"role": "user", "content": QUESTION}


# ── what an answer must be ───────────────────────────────────────────────────────────────────────


def checked(kind: Any, value: Any) -> None:
    """Raises: pydantic.ValidationError for what the type forbids, AssertionError for a key that it does not know."""
    read = pydantic.TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    strange = set(_extras(read)) - OPEN
    assert not strange, strange


def _extras(value: object) -> Iterator[str]:
    if isinstance(value, pydantic.BaseModel):
        yield from (f"{type(value).__name__}.{key}" for key in value.model_extra or {})
        value = [getattr(value, name) for name in type(value).model_fields]
    if isinstance(value, list):
        for each in value:
            yield from _extras(each)


def asked(url: str, path: str, fields: dict[str, Any]) -> bytes:
    body = json.dumps({**GREEDY, **fields}).encode()
    request = urllib.request.Request(url + path, body, {"content-type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request) as response:  # noqa: S310
        answer: bytes = response.read()
    return answer


def events(url: str, path: str, fields: dict[str, Any]) -> list[Any]:
    frames = asked(url, path, {**fields, "stream": True}).decode().split("\n\n")
    return [json.loads(frame.partition("\ndata: ")[2]) for frame in frames if frame]


def open_types() -> dict[str, Any]:
    """The event classes of Open Responses by the type of event."""
    found: dict[str, Any] = {}
    for each in vars(openresponses_types.types).values():
        if isinstance(each, type) and issubclass(each, pydantic.BaseModel) and each.__name__.endswith("StreamingEvent"):
            kinds: Any = each.model_fields["type"].annotation
            found |= dict.fromkeys((str(kind) for kind in get_args(kinds) or kinds), each)
    return found


# ── what is tried ────────────────────────────────────────────────────────────────────────────────


def responses_are_what_both_types_say(url: str) -> None:
    open_events = open_types()
    assert len(open_events) >= 20
    for name, fields in REQUESTS["responses"].items():
        whole = json.loads(asked(url, "/v1/responses", fields))
        checked(Response, whole)
        found = events(url, "/v1/responses", fields)
        assert found[-1]["type"] in ("response.completed", "response.incomplete"), name
        for event in found:
            checked(ResponseStreamEvent, event)
        if name != "schema":  # its generated type knows no schema but null
            openresponses_types.types.ResponseResource.model_validate_json(json.dumps(whole))
            for event in found:
                open_events[event["type"]].model_validate_json(json.dumps(event))
        if name == "required":
            assert {item["type"] for item in whole["output"]} == {"function_call"}, whole["output"]
            assert isinstance(json.loads(whole["output"][0]["arguments"])["city"], str)


def messages_are_what_the_types_say(url: str) -> None:
    for name, fields in REQUESTS["messages"].items():
        whole = json.loads(asked(url, "/v1/messages", fields))
        checked(Message, whole)
        found = events(url, "/v1/messages", fields)
        assert found[-1]["type"] == "message_stop", name
        for event in found:
            checked(RawMessageStreamEvent, event)
        counted = {key: value for key, value in fields.items() if key not in ("max_tokens", "stop_sequences")}
        checked(MessageTokensCount, json.loads(asked(url, "/v1/messages/count_tokens", counted)))
        if name == "any":
            assert whole["stop_reason"] == "tool_use", whole
            assert isinstance(whole["content"][0]["input"]["city"], str)


def the_packages_put_streams_together(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        with client.responses.stream(model="any", temperature=0, input=QUESTION, max_output_tokens=24) as stream:
            text = stream.get_final_response().output_text
        whole = client.responses.create(model="any", temperature=0, input=QUESTION, max_output_tokens=24)
        assert text == whole.output_text
        assert "Paris" in text
        counted = client.responses.input_tokens.count(model="any", input=QUESTION)
        assert counted.input_tokens == (whole.usage.input_tokens if whole.usage else 0)
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as claude:
        asked_for: dict[str, Any] = {"model": "any", "messages": [USER], "max_tokens": 24}
        asked_for["extra_body"] = {"temperature": 0}
        with claude.messages.stream(**asked_for) as parts:
            message = parts.get_final_message()
        again = claude.messages.create(**asked_for)
        texts = [[getattr(block, "text", "") for block in each.content] for each in (message, again)]
        assert texts[0] == texts[1]
        assert message.usage.output_tokens == again.usage.output_tokens


def errors_are_the_packages_own(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        try:
            client.responses.create(model="any", input="x", previous_response_id="resp_1")
            raise AssertionError("previous_response_id was accepted")
        except openai.BadRequestError as error:
            assert error.param == "previous_response_id"
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as claude:
        try:
            long: Any = [{"role": "user", "content": "many words " * 9000}]
            claude.messages.create(model="any", max_tokens=8, messages=long)
            raise AssertionError("the prompt was accepted")
        except anthropic.BadRequestError as error:
            assert "prompt is too long: " in error.message


TRIED: list[Callable[[str], None]] = [
    responses_are_what_both_types_say,
    messages_are_what_the_types_say,
    the_packages_put_streams_together,
    errors_are_the_packages_own,
]


if __name__ == "__main__":
    for tried in TRIED:
        tried(sys.argv[1])
        print(tried.__name__)
