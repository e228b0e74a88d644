"""The form of an answer whose tokens are not known: ends, counts and constraints, by other means than the worker's."""

import json
from typing import Any

import pytest

from tests.tools.fire.test_answers import STREAMS, body
from tools.fire.answers import Answer, answer_of
from tools.fire.asks import CHAT, COMPLETIONS, EXECUTE, GRAMMARS, MESSAGES, RESPONSES, Ask
from tools.fire.forms import flaws

Json = dict[str, Any]


def completion(text: str, *, reason: str = "stop", n_prompt: int = 3, n_tokens: int = 4, n: int = 1) -> Answer:
    usage = {"prompt_tokens": n_prompt, "completion_tokens": n_tokens}
    choices = [{"index": at, "text": text, "logprobs": None, "finish_reason": reason} for at in range(n)]
    return answer_of(Ask(COMPLETIONS, {}), 200, json.dumps({"choices": choices, "usage": usage}).encode())


ALONE = completion("a")


def found(text: str, ask: Json | None = None, **more: Any) -> list[str]:
    return flaws(Ask(COMPLETIONS, {"max_tokens": 9, **(ask or {})}), completion(text, **more), ALONE)


CONSTRAINTS: list[tuple[Json, str, str]] = [
    ({"regex": "[a-c]{3,9}"}, "abc", "ab"),
    ({"guided_regex": "(yes|no)"}, "no", "nope"),
    ({"grammar": GRAMMARS[0]}, "aab", "aa"),
    ({"grammar": GRAMMARS[1]}, "abc,f", "abcd"),
    ({"structured_outputs": {"grammar": GRAMMARS[2]}}, "((x))", "((x)"),
    ({"grammar": GRAMMARS[3]}, "n=12,n=3", "n=12345"),
    ({"structured_outputs": {"choice": ["red", "blue"]}}, "red", "redd"),
    ({"response_format": {"type": "json_object"}}, "{}", "[]"),
    ({"json_schema": {"type": "integer"}}, "7", '"7"'),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": [1]}}}}, "1", "2"),
]


@pytest.mark.parametrize(("constraint", "right", "wrong"), CONSTRAINTS, ids=[f"{each[0]}"[:40] for each in CONSTRAINTS])
def test_a_whole_text_obeys_its_constraint(constraint: Json, right: str, wrong: str) -> None:
    assert not found(right, constraint)
    assert found(wrong, constraint) == [f"the constraint does not allow {wrong!r}"]
    assert not found(wrong, constraint, reason="length")
    assert not found(wrong, constraint | {"stop": ["e"]})


def test_counts_are_those_of_the_prompt_alone_and_at_most_what_all_choices_may_have() -> None:
    assert not found("a", n_tokens=9)
    assert found("a", n_tokens=10) == ["it has 10 tokens; at most 9"]
    assert found("a", n_prompt=4) == ["its prompt has 4 tokens, and alone 3"]
    two = completion("a", n=2, n_tokens=18)
    assert not flaws(Ask(COMPLETIONS, {"max_tokens": 9}), two, completion("a", n=2))
    assert not flaws(Ask(COMPLETIONS, {}), two, completion("a", n=2))


def test_a_reason_that_the_route_does_not_have_is_a_flaw() -> None:
    assert found("a", reason="EOS") == ["it ended with 'EOS'"]


USAGES: dict[str, Json] = {
    RESPONSES: {"status": "completed", "usage": {"input_tokens": 5, "output_tokens": 4}},
    MESSAGES: {"delta": {"stop_reason": "end_turn"}},
}


@pytest.mark.parametrize("path", [EXECUTE, COMPLETIONS, CHAT, RESPONSES, MESSAGES])
def test_a_stream_of_every_route_has_one_end_and_its_members(path: str) -> None:
    events = [event for event in STREAMS[path](["ab"], "x") if event.get("type") != "error"]
    for event in events:
        if event.get("choices") == []:
            event["usage"]["completion_tokens"] = 4
        if event.get("type") == "response.completed":
            event["response"] |= USAGES[RESPONSES]
        if event.get("type") == "message_delta":
            event.update(USAGES[MESSAGES])
    ask = Ask(path, {"stream": True, "max_tokens": 9})
    whole = answer_of(ask, 200, body(path, events))
    assert flaws(ask, whole, whole) == []
    endless = answer_of(ask, 200, body(path, events[:-1], is_whole=False))
    assert flaws(ask, endless, whole) == ["0 ends"]
    if path not in (CHAT, COMPLETIONS):
        bare = answer_of(ask, 200, body(path, [events[0], {"type": events[-1]["type"], "response": {}}]))
        assert flaws(ask, bare, whole)
