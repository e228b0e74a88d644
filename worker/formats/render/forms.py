"""Messages in the forms that a template supports.

The forms that docs/chat.md names: the changes to a conversation if its template would refuse or omit a part of it.
probes.py finds the forms that a template supports.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from typing import Literal, cast

import msgspec

from worker.formats.render.escapes import Json

Message = dict[str, Json]
Way = Literal["own", "split", "text"]
"""own: the template writes it. split: it does after the message was split into several. text: it becomes text."""
Ids = Literal["own", "nine", "named"]
"""The ids of calls: any, nine letters or digits (Mistral), or `functions.NAME:0` (Kimi)."""

_BETWEEN = "\n\n"
_BEFORE_TOOLS = """# Tools

You may call these functions. Each line between <tools> and </tools> is the JSON signature of one:
<tools>
"""
_AFTER_TOOLS = """
</tools>

To call a function, write a JSON object with its name and its arguments between <tool_call> and </tool_call>:
<tool_call>
{"name": <name of the function>, "arguments": <object with the arguments>}
</tool_call>"""
"""The words around the tools for a template that has no place for them. Calls are then in the form of Hermes and Qwen
models, as those of earlier turns (_in_text)."""
END_OF_THOUGHT = re.compile(r"</[\w:]{0,20}think[\w:]{0,20}>|\[/THINK\]|<channel\|>|<\|END_THINKING\|>", re.IGNORECASE)
"""The end of the reasoning in an assistant's content. Templates deliberately omit reasoning from earlier turns."""
_SLASH = re.compile(r"</(?=[\w:]{0,20}think)", re.IGNORECASE)
LEADING = ("system", "developer")
RESULTS = ("tool", "function")
"""The roles of instructions at the beginning of a conversation, and of the results of calls."""
_NINE = re.compile(r"[a-zA-Z0-9]{9}")
REASONING = ("reasoning_content", "thinking", "reasoning")
"""The fields that contain reasoning. Source: transformers, _alias_reasoning_fields."""


@dataclass(frozen=True, slots=True)
class Forms:
    """The forms of a conversation that a template supports."""

    caps: frozenset[str] = frozenset({"developer"})
    """The parts that appear in the text: system, developer, tools, tool_calls, tool_results, reasoning."""
    takes_parts: bool = True
    takes_text: bool = True
    """True if content may be a list of parts; a text."""
    takes_null: bool = True
    takes_blank: bool = True
    """True if a message that calls tools may have no content; an empty one."""
    takes_argument_text: bool = True
    takes_argument_object: bool = True
    """True if a call's arguments may be JSON text; an object."""

    takes_system: bool = True
    """True if a conversation may begin with a system message."""
    takes_systems: bool = True
    """True if a conversation may begin with several system messages, a developer's among them."""
    takes_later_system: bool = True
    takes_users: bool = True
    takes_replies: bool = True
    """True if a system message may be anywhere; several user's messages in a row; several assistant's."""
    takes_reply_first: bool = True
    takes_empty_reply: bool = True
    takes_thoughts: bool = True
    """True if an assistant's content may contain its reasoning."""

    takes_calls: bool = True
    takes_results: bool = True
    takes_stray_results: bool = True
    """True if a result may answer a call that the conversation does not have."""
    takes_no_id: bool = True
    ids: Ids = "own"
    text_with_calls: Way = "own"
    """The way of text next to calls."""
    several_calls: Way = "own"
    """The way of several calls in one message."""

    def plainer(self) -> "tuple[Forms, ...]":
        """Simpler forms for a conversation that these do not suffice for. First, calls and results are text. Second, a
        system message may only come first, and users and assistants alternate. Third, there is no system message."""
        in_text = replace(self, takes_calls=False, takes_results=False)
        in_turns = replace(
            in_text,
            caps=self.caps - {"developer"},
            takes_systems=False,
            takes_later_system=False,
            takes_users=False,
            takes_replies=False,
            takes_reply_first=False,
            takes_empty_reply=False,
            takes_thoughts=False,
        )
        return in_text, in_turns, replace(in_turns, takes_system=False)


def in_forms(messages: list[Message], forms: Forms) -> list[Message]:
    """Copies of the messages in the forms."""
    messages = [_with_arguments(_in_known_role(message, forms), forms) for message in messages]
    if not forms.takes_thoughts:
        messages = [_without_thoughts(message) for message in messages]
    if forms.ids != "own" or (not forms.takes_no_id and any(map(_lacks_id, messages))):
        ids = _CallIds(forms.ids)
        messages = [ids.put_into(message) for message in messages]
    messages = _with_calls(messages, forms)
    messages = _with_results(messages, forms)
    messages = _with_systems(messages, forms)
    messages = _in_turns(messages, forms)
    return [_with_content(message, forms) for message in messages]


def with_tools(messages: list[Message], tools: list[Json]) -> list[Message]:
    """The messages with the tools as text at the end of the first system message, which is made if there is none."""
    words = _BEFORE_TOOLS + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools) + _AFTER_TOOLS
    if messages and messages[0].get("role") == "system" and isinstance(said := messages[0].get("content"), str):
        return [{**messages[0], "content": said + _BETWEEN + words if said else words}, *messages[1:]]
    return [{"role": "system", "content": words}, *messages]


def object_of(text: str) -> Json:
    """The object whose JSON text this is, else the text."""
    try:
        return cast(Json, msgspec.json.decode(text, type=dict[str, object]))
    except msgspec.DecodeError:
        return text


def calls_of(message: Message) -> list[dict[str, Json]]:
    """The calls that have a function."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return []
    return [call for call in calls if isinstance(call, dict) and isinstance(call.get("function"), dict)]


def function_of(call: dict[str, Json]) -> dict[str, Json]:
    return cast(dict[str, Json], call["function"])


def _in_known_role(message: Message, forms: Forms) -> Message:
    role = message.get("role")
    if role == "developer" and "developer" not in forms.caps:
        return {**message, "role": "system"}
    return {**message, "role": "tool"} if role == "function" else message


def _without_thoughts(message: Message) -> Message:
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, str):
        return message
    return {**message, "content": END_OF_THOUGHT.split(content)[-1]}


def _joined(content: Json) -> str:
    """The text of a content of any form."""
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return content if isinstance(content, str) else ""


def _with_content(message: Message, forms: Forms) -> Message:
    content = message.get("content")
    if isinstance(content, list) and not forms.takes_parts:
        return {**message, "content": _joined(content)}
    if isinstance(content, str) and not forms.takes_text:
        return {**message, "content": [{"type": "text", "text": content}]}
    if content is None and not (forms.takes_null and message.get("tool_calls")):
        return {**message, "content": ""}
    if content == "" and message.get("tool_calls") and not forms.takes_blank:
        return {**message, "content": None}
    return message


def _with_arguments(message: Message, forms: Forms) -> Message:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_call_in_form(call, forms) for call in calls]}


def _call_in_form(call: Json, forms: Forms) -> Json:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return call
    arguments = _arguments_of(call)
    if isinstance(arguments, str) and not forms.takes_argument_text:
        arguments = object_of(arguments)
    elif isinstance(arguments, dict) and not forms.takes_argument_object:
        arguments = json.dumps(arguments, ensure_ascii=False)
    return call if arguments is None else {**call, "function": {**function_of(call), "arguments": arguments}}


class _CallIds:
    """Ids that a template supports; a call and its result have the same. A result finds its call by id, by name, or as
    the first; each call once."""

    def __init__(self, kind: Ids) -> None:
        self._kind = kind
        self._n_calls = 0
        self._waiting: dict[tuple[str, str], deque[list[str]]] = {}
        """The ids of calls by each way to find them. A result takes the id out of its list."""

    def put_into(self, message: Message) -> Message:
        """The message with such ids."""
        if message.get("role") == "tool":
            return {**message, "tool_call_id": self._id_of_result(message)}
        calls: list[Json] = [self._call(call) for call in calls_of(message)]
        return {**message, "tool_calls": calls} if calls else message

    def _call(self, call: dict[str, Json]) -> Json:
        sent, name = call.get("id"), function_of(call).get("name")
        known = [self._known(sent, name)]
        for key in (("id", str(sent)), ("name", str(name)), ("any", "")):
            self._waiting.setdefault(key, deque()).append(known)
        self._n_calls += 1
        return {**call, "id": known[0]}

    def _id_of_result(self, result: Message) -> str:
        sent, name = result.get("tool_call_id"), result.get("name")
        ways = [("id", str(sent))] if sent else [*([("name", str(name))] if name else []), ("any", "")]
        for way in ways:
            waiting = self._waiting.get(way, deque())
            while waiting:
                if known := waiting.popleft():
                    return known.pop()
        return self._known(sent, name or "unknown")

    def _known(self, sent: Json, name: Json) -> str:
        if self._kind == "named":
            own = f"functions.{name}:"
            return sent if isinstance(sent, str) and sent.startswith(own) else f"{own}{self._n_calls}"
        if not isinstance(sent, str) or not sent:
            return f"call{self._n_calls:05}"
        return sent if self._kind == "own" or _NINE.fullmatch(sent) else sha256(sent.encode()).hexdigest()[:9]


def _lacks_id(message: Message) -> bool:
    if message.get("role") == "tool":
        return not message.get("tool_call_id")
    return any(not call.get("id") for call in calls_of(message))


def _with_calls(messages: list[Message], forms: Forms) -> list[Message]:
    """The messages with calls in a form that the template supports, which may be several messages."""
    made: list[Message] = []
    waiting = list(messages)
    while waiting:
        message = waiting.pop(0)
        calls, has_text = calls_of(message), bool(_joined(message.get("content")).strip())
        if not calls:
            made.append(message)
        elif (
            not forms.takes_calls
            or (len(calls) > 1 and forms.several_calls == "text")
            or (has_text and forms.text_with_calls == "text")
            or (not forms.takes_argument_text and any(isinstance(_arguments_of(call), str) for call in calls))
        ):
            made.append(_in_text(message, calls))
        else:
            if has_text and forms.text_with_calls == "split":
                made.append(_without(message, "tool_calls"))
                message = {**message, "content": None}
            made += _alone(message, calls, waiting, forms)
    return made


def _arguments_of(call: dict[str, Json]) -> Json:
    return function_of(call).get("arguments")


def _in_text(message: Message, calls: list[dict[str, Json]]) -> Message:
    """The message with its calls as text, in the form of Hermes and Qwen models."""
    written = [said] if (said := _joined(message.get("content"))).strip() else []
    for call in calls:
        arguments = _arguments_of(call)
        if isinstance(arguments, str):
            arguments = object_of(arguments or "{}")
        text = json.dumps({"name": function_of(call).get("name"), "arguments": arguments}, ensure_ascii=False)
        # This is the same JSON, but no template mistakes it for the end of reasoning.
        text = _SLASH.sub(r"<\/", text)
        written.append(f"<tool_call>\n{text}\n</tool_call>")
    return {**_without(message, "tool_calls"), "content": "\n".join(written)}


def _alone(message: Message, calls: list[dict[str, Json]], waiting: list[Message], forms: Forms) -> Iterator[Message]:
    """One message for each call, followed by its results, which are removed from `waiting`; or the message itself."""
    if forms.several_calls != "split" or len(calls) < 2:
        yield message
        return
    n_results = next((n for n, one in enumerate(waiting) if one.get("role") != "tool"), len(waiting))
    results, waiting[:n_results] = waiting[:n_results], []
    for n, call in enumerate(calls):
        one = message if n == 0 else {**_without(message, *REASONING), "content": None}
        yield {**one, "tool_calls": [call]}
        is_last = n == len(calls) - 1
        own = [result for result in results if is_last or result.get("tool_call_id") == call.get("id")]
        results = [result for result in results if result not in own]
        yield from own


def _without(message: Message, *keys: str) -> Message:
    return {key: value for key, value in message.items() if key not in keys}


def _with_results(messages: list[Message], forms: Forms) -> list[Message]:
    """The messages; results that the template does not support become one user's text, in the form of Qwen's."""
    if forms.takes_results and forms.takes_stray_results:
        return messages
    asked: set[str] = set()
    is_text = []
    for message in messages:
        asked |= {str(call.get("id")) for call in calls_of(message)}
        is_taken = forms.takes_results and str(message.get("tool_call_id")) in asked
        is_text.append(message.get("role") == "tool" and not is_taken)
    made: list[Message] = []
    for are_texts, run in groupby(zip(messages, is_text, strict=True), key=itemgetter(1)):
        ran = [message for message, _ in run]
        written = (f"<tool_response>\n{_joined(message.get('content'))}\n</tool_response>" for message in ran)
        made += [{"role": "user", "content": "\n".join(written)}] if are_texts else ran
    return made


def _with_systems(messages: list[Message], forms: Forms) -> list[Message]:
    n_leading = next((n for n, one in enumerate(messages) if one.get("role") not in LEADING), len(messages))
    leading, later = messages[:n_leading], messages[n_leading:]
    if not forms.takes_system:
        leading = [{**message, "role": "user"} for message in leading]
    elif not forms.takes_systems and len(leading) > 1:
        leading = [_as_one(leading)]
    if not forms.takes_later_system:
        later = [{**message, "role": "user"} if message.get("role") in LEADING else message for message in later]
    return [*leading, *later]


def _in_turns(messages: list[Message], forms: Forms) -> list[Message]:
    if not forms.takes_empty_reply:
        messages = [one for one in messages if not _is_empty_reply(one)]
    if not forms.takes_reply_first:
        first = next((n for n, one in enumerate(messages) if one.get("role") not in LEADING), 0)
        if messages[first : first + 1] and messages[first].get("role") == "assistant":
            messages = [*messages[:first], {"role": "user", "content": ""}, *messages[first:]]
    if not forms.takes_users:
        messages = _merged(messages, lambda message: message.get("role") == "user")
    if not forms.takes_replies:
        messages = _merged(messages, _is_reply)
    return messages


def _is_reply(message: Message) -> bool:
    return message.get("role") == "assistant" and not calls_of(message)


def _is_empty_reply(message: Message) -> bool:
    has_more = any(message.get(name) for name in REASONING)
    return _is_reply(message) and not has_more and not _joined(message.get("content")).strip()


def _merged(messages: list[Message], is_one: Callable[[Message], bool]) -> list[Message]:
    made: list[Message] = []
    for is_kind, run in groupby(messages, is_one):
        ran = list(run)
        made += [_as_one(ran)] if is_kind else ran
    return made


def _as_one(messages: list[Message]) -> Message:
    """The first message with the contents and the reasoning of all."""
    if len(messages) == 1:
        return messages[0]
    one: Message = {}
    for message in reversed(messages):
        one |= message
    for name in ("content", *REASONING):
        if said := [text for message in messages if (text := _joined(message.get(name)))]:
            one[name] = _BETWEEN.join(said)
    return one
