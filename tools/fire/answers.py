"""An answer's bytes without what differs between two of them by right: ids, times, cached tokens, the cut into chunks.

Pure.
"""

from typing import Any

import msgspec

from client.openai import DONE
from client.sse import Frames, data_of
from tools.fire.asks import CHAT, COMPLETIONS, EXECUTE, MESSAGES, RESPONSES, Ask

Json = dict[str, Any]

OK = 200

_VOLATILE = frozenset(
    {
        *("created", "created_at", "completed_at", "call_id", "item_id", "system_fingerprint", "model"),
        *("prompt_tokens_details", "input_tokens_details", "cache_read_input_tokens"),
        *("accepted_prediction_tokens", "rejected_prediction_tokens", "sequence_number", "job_id"),
    }
)
"""Members that may differ. `id` is one, too, if it is a text: the ids of tokens are numbers."""
_ENDINGS = {
    RESPONSES: {"response.completed", "response.incomplete", "response.failed"},
    MESSAGES: {"message_stop", "error"},
    EXECUTE: {"end", "error"},
}
_CHOICES_TEXTS = ("content", "reasoning_content", "reasoning")


class Answer(msgspec.Struct, kw_only=True):
    """An answer as it is compared."""

    status: int
    body: Any = None
    """The whole body, if the answer is no stream."""
    fixed: dict[str, Any] = {}
    """The members that a stream says once, at any time before its end."""
    texts: dict[str, str] = {}
    """The texts that grow in a stream. An answer that broke off has a prefix of each."""
    lists: dict[str, list[Any]] = {}
    """The same."""
    ending: dict[str, Any] = {}
    """The members that only a complete stream has."""
    error: str = ""
    """The code of the error that ended a stream."""
    n_endings: int = 0
    """Terminal events; a stream has one."""
    n_tokens: int = 0
    """Token events, which are cut as it comes: not compared."""


def answer_of(ask: Ask, status: int, body: bytes) -> Answer:
    """The answer, of which a last part may be missing. Raises: ValueError for what is no answer."""
    if status != OK or not ask.is_stream:
        return Answer(status=status, body=_scrubbed(msgspec.json.decode(body)) if body else None)
    answer = Answer(status=status)
    reader = {EXECUTE: _job, COMPLETIONS: _chunk, CHAT: _chunk, RESPONSES: _response, MESSAGES: _message}[ask.path]
    for data in filter(None, map(data_of, Frames().feed(body))):
        if answer.n_endings:
            raise ValueError(f"{data[:80]!r} follows the end")
        if data == DONE:
            answer.n_endings += 1
        else:
            reader(answer, msgspec.json.decode(data))
    return answer


def differences(answer: Answer, alone: Answer) -> list[str]:
    """The parts in which a complete answer differs from the one that the request has alone."""
    names = ("status", "body", "fixed", "texts", "lists", "ending", "error", "n_endings")
    return [
        f"{name}: {_shown(getattr(answer, name), getattr(alone, name))}"
        for name in names
        if getattr(answer, name) != getattr(alone, name)
    ]


def excesses(answer: Answer, alone: Answer) -> list[str]:
    """The parts of an answer that broke off which the one alone does not begin with."""
    found = [name for name, value in answer.fixed.items() if alone.fixed.get(name) != value]
    found += [name for name, text in answer.texts.items() if not alone.texts.get(name, "").startswith(text)]
    found += [name for name, items in answer.lists.items() if items != alone.lists.get(name, [])[: len(items)]]
    return found


def _shown(value: object, alone: object) -> str:
    if isinstance(value, dict) and isinstance(alone, dict):
        names = sorted(name for name in value.keys() | alone.keys() if value.get(name) != alone.get(name))
        return "; ".join(f"{name}: {_short(value.get(name))} != {_short(alone.get(name))}" for name in names)
    return f"{_short(value)} != {_short(alone)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}…"


def _scrubbed(value: Any) -> Any:
    """The value without volatile members. Anthropic's count of tokens leaves cached ones out: they are put back."""
    if isinstance(value, list):
        return [_scrubbed(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "cache_read_input_tokens" in value:
        value = value | {"input_tokens": value["input_tokens"] + value["cache_read_input_tokens"]}
    return {
        name: _scrubbed(item)
        for name, item in value.items()
        if name not in _VOLATILE and not (name == "id" and isinstance(item, str))
    }


def _grow(answer: Answer, name: str, text: str | None) -> None:
    if text:
        answer.texts[name] = answer.texts.get(name, "") + text


def _extend(answer: Answer, name: str, items: list[Any]) -> None:
    answer.lists.setdefault(name, []).extend(items)


def _end(answer: Answer, path: str, kind: str) -> None:
    answer.n_endings += kind in _ENDINGS[path]


# ── a stream's events, by protocol ───────────────────────────────────────────────────────────────


def _job(answer: Answer, event: Json) -> None:
    match event["type"]:
        case "started":
            if answer.fixed:
                raise ValueError("started twice")
            answer.fixed["seed"] = event["seed"]
            if event["prompt_tokens"]:  # 0 for a job that ends before its prompt was read
                answer.fixed["prompt_tokens"] = event["prompt_tokens"]
        case "token":
            if event["i"] != answer.n_tokens:
                raise ValueError(f"token {event['i']} out of order")
            answer.n_tokens += 1
            _grow(answer, "t", event["t"])
            _extend(answer, "logprobs", event.get("logprobs", []))
        case "end":
            own = ("stop_reason", "stop_sequence_matched", "tokens_sampled", "prompt_tokens", "context_full")
            answer.ending = {name: event[name] for name in own if name in event}
        case "error":
            answer.error = event["code"]
    _end(answer, EXECUTE, event["type"])


def _chunk(answer: Answer, chunk: Json) -> None:
    if error := chunk.get("error"):
        answer.error = error["code"]
        answer.n_endings += 1
        return
    for choice in chunk["choices"]:
        _choice(answer, choice)
    if usage := chunk.get("usage"):
        answer.ending["usage"] = _scrubbed(usage)


def _choice(answer: Answer, choice: Json) -> None:
    at = choice["index"]
    delta = choice.get("delta", {})
    _grow(answer, f"{at}.text", choice.get("text"))
    for name in _CHOICES_TEXTS:
        _grow(answer, f"{at}.{name}", delta.get(name))
    for call in delta.get("tool_calls", []):
        place = f"{at}.call.{call['index']}"
        if name := call["function"].get("name"):
            answer.fixed[place] = name
        _grow(answer, place, call["function"].get("arguments"))
    for name, items in (choice.get("logprobs") or {}).items():
        _extend(answer, f"{at}.{name}", items or [])
    for name in ("finish_reason", "prompt_logprobs"):
        if choice.get(name) is not None:
            answer.ending[f"{at}.{name}"] = choice[name]


def _response(answer: Answer, event: Json) -> None:
    kind = event["type"]
    if kind.endswith(".delta"):
        _grow(answer, f"{event['output_index']}.{kind}", event["delta"])
    elif kind == "response.output_item.added":
        item = event["item"]
        answer.fixed[str(event["output_index"])] = [item["type"], item.get("name")]
    elif kind in _ENDINGS[RESPONSES]:
        answer.ending["response"] = _scrubbed(event["response"])
        if kind == "response.failed":
            answer.error = event["response"]["error"]["code"]
    _end(answer, RESPONSES, kind)


def _message(answer: Answer, event: Json) -> None:
    match event["type"]:
        case "message_start":
            n_tokens = _scrubbed(event["message"]["usage"])["input_tokens"]
            if n_tokens:  # as in a job's
                answer.fixed["input_tokens"] = n_tokens
        case "content_block_start":
            block = event["content_block"]
            answer.fixed[str(event["index"])] = [block["type"], block.get("name")]
        case "content_block_delta":
            delta = event["delta"]
            grown = delta.get("text") or delta.get("thinking") or delta.get("partial_json")
            _grow(answer, str(event["index"]), grown)
        case "message_delta":
            answer.ending["message"] = _scrubbed(event)
        case "error":
            answer.error = event["error"]["type"]
    _end(answer, MESSAGES, event["type"])
