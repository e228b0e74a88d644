"""An answer's form, for one whose tokens need not be those of the answer alone: ends, counts, constraints.

Owns what holds for any answer to a request. Refuses to know which tokens may be in it. Pure.
"""

import re
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import jsonschema
import msgspec

from tools.fire.answers import Answer
from tools.fire.asks import CHAT, COMPLETIONS, EXECUTE, GRAMMARS, MESSAGES, RESPONSES, Ask, Json

_ENDED = {"stop", "EOS"}
"""The reasons of a text that is whole, if the request has no stops, which may cut it anywhere."""
_REASONS = {
    EXECUTE: {"EOS", "MAX_TOKENS", "STOP_SEQUENCE"},
    COMPLETIONS: {"stop", "length"},
    CHAT: {"stop", "length", "tool_calls"},
    RESPONSES: {"completed", "incomplete"},
    MESSAGES: {"end_turn", "max_tokens", "stop_sequence", "tool_use"},
}
_COUNTS = {
    COMPLETIONS: ("prompt_tokens", "completion_tokens"),
    CHAT: ("prompt_tokens", "completion_tokens"),
    RESPONSES: ("input_tokens", "output_tokens"),
    MESSAGES: ("input_tokens", "output_tokens"),
}
_OF_GRAMMARS: dict[str, Callable[[str], object]] = dict(
    zip(
        GRAMMARS,
        (
            re.compile("a*b").fullmatch,
            re.compile("[a-f]{1,3}(,[a-f]{1,3})*").fullmatch,
            lambda text: text == f"{'(' * (len(text) // 2)}x{')' * (len(text) // 2)}",
            re.compile("n=[0-9]{1,4}(,n=[0-9]{1,4})*").fullmatch,
        ),
        strict=True,
    )
)
"""The texts of each grammar, by other means than the worker's."""


def flaws(ask: Ask, answer: Answer, alone: Answer) -> list[str]:
    """Return what is wrong with a complete answer, whatever its tokens are. Its prompt has as many as `alone`'s."""
    try:
        return [*_flaws(ask, answer, alone)]
    except (KeyError, TypeError) as error:
        return [f"it lacks a member: {error!r}"]


def _flaws(ask: Ask, answer: Answer, alone: Answer) -> Iterator[str]:
    if ask.is_stream and answer.n_endings != 1:
        yield f"{answer.n_endings} ends"
        return
    if answer.error:
        yield f"it ended with {answer.error}"
        return
    counts, counts_alone = _counts(ask, answer), _counts(ask, alone)
    if (counts is None) != (counts_alone is None):
        yield f"its counts are {counts}, and alone {counts_alone}"
    elif counts is not None and counts_alone is not None:
        if counts[0] != counts_alone[0]:
            yield f"its prompt has {counts[0]} tokens, and alone {counts_alone[0]}"
        most = _most(ask, alone)
        if counts[1] > most:
            yield f"it has {counts[1]} tokens; at most {most:g}"
    for reason, text in _ends(ask, answer):
        if reason not in _REASONS[ask.path]:
            yield f"it ended with {reason!r}"
        elif reason in _ENDED and not ask.body.keys() & {"stop", "stop_token_ids"} and not _obeys(ask.body, text):
            yield f"the constraint does not allow {text[:200]!r}"


def _most(ask: Ask, alone: Answer) -> float:
    """The most tokens that all choices may have together."""
    limits = [ask.body[name] for name in ("max_tokens", "max_output_tokens") if name in ask.body]
    return min(limits, default=inf) * len([*_ends(ask, alone)])


def _counts(ask: Ask, answer: Answer) -> tuple[int, int] | None:
    """The tokens of the prompt and of the answer; None if it has no counts."""
    if ask.path == EXECUTE:
        return answer.ending["prompt_tokens"], answer.ending["tokens_sampled"]
    usage = _usage(ask, answer)
    if usage is None:
        return None
    of_prompt, of_answer = _COUNTS[ask.path]
    return usage[of_prompt], usage[of_answer]


def _usage(ask: Ask, answer: Answer) -> Json | None:
    if answer.body is not None:
        return dict(answer.body["usage"])
    if ask.path == RESPONSES:
        return dict(answer.ending["response"]["usage"])
    if ask.path == MESSAGES:
        return dict(answer.ending["message"]["usage"]) | {"input_tokens": answer.fixed["input_tokens"]}
    usage: Json | None = answer.ending.get("usage")
    return usage


def _ends(ask: Ask, answer: Answer) -> Iterator[tuple[str, str]]:
    """Yield the reason of each choice's end, and its text, which is left out where no constraint is judged."""
    body = answer.body
    match ask.path:
        case "/execute":
            yield answer.ending["stop_reason"], answer.texts.get("t", "")
        case "/v1/responses":
            yield (body if body is not None else answer.ending["response"])["status"], ""
        case "/v1/messages":
            yield (body if body is not None else answer.ending["message"]["delta"])["stop_reason"], ""
        case _ if body is not None:
            for choice in body["choices"]:
                message = choice.get("message")
                yield choice["finish_reason"], (choice["text"] if message is None else message["content"]) or ""
        case _:
            name = "text" if ask.path == COMPLETIONS else "content"
            for place, reason in answer.ending.items():
                number, _, what = place.partition(".")
                if what == "finish_reason":
                    yield reason, answer.texts.get(f"{number}.{name}", "")


def _obeys(body: Json, text: str) -> bool:
    """True if the request's constraint allows the whole text. Tools, and the two routes whose texts are left out, are
    not judged.
    """
    structured = body.get("structured_outputs", {})
    if regex := body.get("regex", body.get("guided_regex")):
        return bool(re.fullmatch(regex, text))
    if grammar := body.get("grammar", structured.get("grammar")):
        return bool(_OF_GRAMMARS[grammar](text))
    if choices := structured.get("choice"):
        return text in choices
    form = body.get("response_format", {})
    schema = body.get("json_schema", form.get("json_schema", {}).get("schema"))
    if form.get("type") == "json_object":
        schema = {"type": "object"}
    return schema is None or _is_valid(text, schema)


def _is_valid(text: str, schema: Any) -> bool:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return False
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))
