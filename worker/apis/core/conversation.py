"""A conversation: messages in OpenAI's shape become what the engine's template renders, at `/execute` and at `/v1`.
Conversations of other protocols become such messages first, one part after the other.

Templates expect a content as one text, and a call's arguments as an object. Two spellings of one conversation become
the same messages, so that their prompts have the same prefix.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, get_args

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from worker.apis.core.bodies import Problems
from worker.apis.core.constraint_fields import MAX_BYTES, MAX_DEPTH, depth_of
from worker.apis.core.errors import replaced, respelled
from worker.wire.encoding import doc, encode_json
from worker.wire.prompts import Conversation

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
MAX_MESSAGES = 2048
MAX_CALLS = 128
"""The most calls of one message, the same as OpenAI's. With the other limits a conversation fits in a frame."""

BETWEEN_PARTS = "\n"
"""The separator of the parts of a content, the same as in llama-server and vLLM."""

KIND = re.compile(r"[a-z_]{1,40}")
"""An answer may name a type of this form, but no text that was sent by mistake."""
MAY_BE_EMPTY = "is missing; send a text, which may be empty"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a message's content."""

    type: Annotated[str, doc("Only text is supported.", const="text")]
    text: str | UnsetType = UNSET


class Called(msgspec.Struct, frozen=True, kw_only=True):
    """A function and the arguments of its call."""

    name: str
    arguments: Annotated[str | dict[str, Any], doc("A JSON object, or its JSON text.")] = ""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that an assistant has made."""

    id: str | UnsetType | None = UNSET
    type: Annotated[str, doc("Only function is supported.", const="function")] = "function"
    function: Called


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a conversation. Other keys are ignored; at `/v1` a header names them."""

    role: Annotated[str, doc("The author of the message.", enum=list(ROLES))]
    content: Annotated[
        str | list[Part] | UnsetType | None, doc("A text or a list of parts. Only an assistant's message may omit it.")
    ] = UNSET
    name: str | None = None
    reasoning_content: Annotated[str | None, doc("The assistant's reasoning before its answer.")] = None
    reasoning: Annotated[str | None, doc("Alias of reasoning_content.")] = None
    tool_calls: Annotated[list[ToolCall] | None, doc("Calls by the assistant.")] = None
    function_call: Annotated[Called | None, doc("Legacy form of tool_calls, for one call.")] = None
    tool_call_id: Annotated[str | None, doc("The id of the call that a tool's message answers.")] = None
    prefix: Annotated[
        bool | None, doc("true on the last message, if it is an assistant's: the answer continues its text.")
    ] = None


def read_conversation(
    problems: Problems,
    messages: object,
    *,
    tools: object = None,
    template_kwargs: object = None,
    add_generation_prompt: bool | None = None,
    continue_final_message: bool | None = None,
    max_chars: int,
) -> Conversation | None:
    """The conversation from values that msgspec.json.decode returned. None for add_generation_prompt means true unless
    the answer continues the final message.

    `max_chars` limits the Unicode scalar values in the texts of all messages together, and in the JSON of `tools`.
    Returns None if rules are broken; at most MAX_ERRORS are added, which quote no text.
    """
    own = Problems()
    read = _messages(own, messages, max_chars)
    kwargs = {} if template_kwargs is None else template_kwargs
    goes_on = "continue_final_message" if continue_final_message else _prefix_field(messages)
    is_open = goes_on is None if add_generation_prompt is None else add_generation_prompt
    made = Conversation(
        messages=_json(read),
        tools=None if tools is None else _limited(own, "tools", tools, list[dict[str, Any]], max_chars),
        template_kwargs=_limited(own, "chat_template_kwargs", kwargs, dict[str, Any], MAX_BYTES),
        add_generation_prompt=is_open,
        continue_final_message=goes_on is not None,
    )
    if goes_on is not None:
        _check_continuation(own, goes_on, read, add_generation_prompt=is_open)
    problems.take(own)
    return None if own.found else made


def entries(problems: Problems, field: str, raw: object) -> list[Any]:
    """The entries of a conversation. If there are none or too many, that is added and none is returned."""
    if raw is None:
        problems.add(field, "required", "is missing")
        return []
    found: list[Any] = problems.shaped(field, raw, list[Any]) or []
    if raw == []:
        problems.add(field, "non_empty", "must not be empty")
    if len(found) > MAX_MESSAGES:
        text = f"must have at most {MAX_MESSAGES} entries (got {len(found)})"
        problems.add(field, f"max_count({MAX_MESSAGES})", text)
        return []
    return found


def _messages(problems: Problems, raw: object, max_chars: int) -> list[Message]:
    """The valid messages in the form that templates expect."""
    read = []
    for at, one in enumerate(entries(problems, "messages", raw)):
        if problems.is_full:
            return []
        message = problems.shaped(f"messages[{at}]", one, Message)
        if message is None:
            continue
        broken = Problems()
        _check_message(broken, f"messages[{at}]", message)
        problems.take(broken)
        if not broken.found:
            read.append(_as_templates_expect(message))
    n_chars = sum(len(text) for message in read for text in _texts(message))
    if n_chars > max_chars:
        text = f"must be at most {max_chars} characters together (got {n_chars})"
        problems.add("messages", f"length(1..={max_chars})", text)
    return read


def _check_message(problems: Problems, place: str, message: Message) -> None:
    if message.role not in ROLES:
        problems.add(f"{place}.role", "role", f"must be one of {', '.join(ROLES)}")
    if isinstance(message.content, list):
        check_parts(problems, f"{place}.content", message.content)
    elif not isinstance(message.content, str) and message.role != "assistant":
        problems.add(f"{place}.content", "required", MAY_BE_EMPTY)
    for field in ("tool_calls", "function_call"):
        if getattr(message, field) and message.role != "assistant":
            text = "is allowed in an assistant's message only; remove it, or change the role"
            problems.add(f"{place}.{field}", "role(assistant)", text)
    if message.tool_calls and message.function_call:
        text = "cannot go with tool_calls; send one of them"
        problems.add(f"{place}.function_call", "exclusive(tool_calls)", text)
    if (n_calls := len(message.tool_calls or ())) > MAX_CALLS:
        text = f"must have at most {MAX_CALLS} entries (got {n_calls})"
        problems.add(f"{place}.tool_calls", f"max_count({MAX_CALLS})", text)
    for at, call in enumerate(message.tool_calls or ()):
        if problems.is_full:
            return
        where = f"{place}.tool_calls[{at}]"
        if call.type != "function":
            problems.add(f"{where}.type", "function_only", "must be function, the only supported type")
        check_depth(problems, f"{where}.function.arguments", call.function.arguments)
    if message.function_call:
        check_depth(problems, f"{place}.function_call.arguments", message.function_call.arguments)


def check_parts(problems: Problems, place: str, parts: list[Part]) -> None:
    """Each part must be a text."""
    for at, part in enumerate(parts):
        if problems.is_full:
            return
        where = f"{place}[{at}]"
        if part.type != "text":
            text = f"must be text, the only type that this worker reads{got(part.type)}; remove the part"
            problems.add(f"{where}.type", "text_only", text)
        elif part.text is UNSET:
            problems.add(f"{where}.text", "required", MAY_BE_EMPTY)


def _prefix_field(messages: object) -> str | None:
    """The place of `prefix` if the last message asks the answer to continue it; else None."""
    match messages:
        case [*before, {"prefix": True}]:
            return f"messages[{len(before)}].prefix"
        case _:
            return None


def _check_continuation(problems: Problems, field: str, read: list[Message], *, add_generation_prompt: bool) -> None:
    """The answer must be able to continue the last message, as `field` asks."""
    if add_generation_prompt:
        problems.add(
            field, "exclusive(add_generation_prompt)", "cannot go with add_generation_prompt; send one of them"
        )
    if read and (read[-1].role != "assistant" or not isinstance(read[-1].content, str)):
        text = "needs a last message by the assistant with a text to continue"
        problems.add(field, "last_message(assistant)", text)


def _texts(message: Message) -> Iterator[str]:
    """Yield all texts of the message that a template may put into a prompt."""
    for text in (message.content, message.name, message.tool_call_id, message.reasoning_content):
        if isinstance(text, str):
            yield text
    for call in message.tool_calls or ():
        yield call.id or ""
        yield call.function.name
        arguments = call.function.arguments
        yield arguments if isinstance(arguments, str) else _json(arguments)


def _as_templates_expect(message: Message) -> Message:
    """The message with one text as its content, or null next to calls, and with the arguments of calls as objects."""
    content = message.content
    given = [ToolCall(function=message.function_call)] if message.function_call else message.tool_calls or []
    calls = [replace(call, function=_with_object(call.function)) for call in given]
    if isinstance(content, list):
        content = joined(part.text for part in content if isinstance(part.text, str))
    if content is UNSET or content is None:
        content = None if calls else ""
    return replace(
        message,
        content=content,
        reasoning_content=message.reasoning_content or message.reasoning,
        reasoning=None,
        tool_calls=calls or None,
        function_call=None,
        prefix=None,
    )


def _with_object(called: Called) -> Called:
    """The call with its arguments as an object. If their text is not an object's JSON, it stays a text."""
    if not isinstance(called.arguments, str):
        return called
    try:
        read = msgspec.json.decode(called.arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return called
    if not isinstance(read, dict) or depth_of(read) > MAX_DEPTH:
        return called
    return replace(called, arguments=read)


def _limited(problems: Problems, field: str, raw: object, shape: type[Any], max_chars: int) -> str:
    """The value as JSON. It must be of the type, not nested too deeply, and not longer than `max_chars`."""
    if problems.shaped(field, raw, shape) is None or check_depth(problems, field, raw):
        return ""
    text = _json(raw)
    if len(text) > max_chars:
        what = f"must be at most {max_chars} characters as compact JSON (got {len(text)})"
        problems.add(field, f"length(..={max_chars})", what)
    return text


def check_depth(problems: Problems, field: str, value: object) -> bool:
    """A value must not be nested deeper than MAX_DEPTH. Returns True if it is."""
    is_deep = depth_of(value) > MAX_DEPTH
    if is_deep:
        problems.add(field, f"max_depth({MAX_DEPTH})", f"must be nested at most {MAX_DEPTH} deep")
    return is_deep


def _json(value: object) -> str:
    return encode_json(value).decode()


def unread(place: str, value: object, kind: Any) -> Iterator[str]:
    """Yield the places of members that are not null and that no struct of the type `kind` has, without the numbers of
    entries: `messages.content.cache_control`. A place may come more than once."""
    shape = _struct_in(kind)
    if shape is None:
        return
    match value:
        case list():
            for entry in value:
                yield from unread(place, entry, kind)
        case dict():
            fields = _fields(shape)
            for name, inner in value.items():
                if inner is None:
                    continue
                if name in fields:
                    yield from unread(f"{place}.{name}", inner, fields[name])
                else:
                    yield f"{place}.{name}"


@cache
def _struct_in(kind: Any) -> type[msgspec.Struct] | None:
    """The struct that values of the type, or their entries, may be; no type here has two."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    return next((found for inner in get_args(kind) if (found := _struct_in(inner)) is not None), None)


@cache
def _fields(shape: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(shape)}


class Turns:
    """The messages so far. Consecutive parts of the assistant are one message: reasoning, text and calls."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.messages: list[dict[str, Any]] = []
        self.places: list[str] = []
        """The place of each message, or of its first part."""
        self.left_out: list[str] = []
        """The names of what the model does not get."""

    def say(self, role: str, text: str, place: str) -> None:
        """Add a message of a user or of the system."""
        self._add({"role": role, "content": text}, place)

    def answer(self, text: str, place: str) -> None:
        """Add text of the assistant."""
        self._append("content", text, place)

    def think(self, text: str, place: str) -> None:
        """Add reasoning of the assistant."""
        self._append("reasoning_content", text, place)

    def call(self, call_id: str, name: str, arguments: str | dict[str, Any], place: str) -> None:
        """Add a call by the assistant."""
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._assistants(place).setdefault("tool_calls", []).append(call)

    def result(self, call_id: str, text: str, place: str) -> None:
        """Add the result of a call."""
        self._add({"role": "tool", "tool_call_id": call_id, "content": text}, place)

    def leave_out(self, place: str, kind: str) -> str:
        """Name a picture or a file that is left out. Return the text in its place."""
        self.left_out.append(f"{place}.{kind}")
        return f"[{kind.removeprefix('input_')} left out: this model reads text only]"

    def refuse(self, place: str, rule: str, text: str) -> None:
        """Add a problem, unless there are enough."""
        if not self.problems.is_full:
            self.problems.add(place, rule, text)

    def needed(self, place: str, part: msgspec.Struct, field: str, text: str = "is missing") -> str:
        """The text in the field, which must be there."""
        value: str | None = getattr(part, field)
        if value is None:
            self.refuse(f"{place}.{field}", "required", text)
        return value or ""

    def conversation(
        self,
        tools: object,
        variables: dict[str, Any],
        *,
        max_chars: int,
        names: Mapping[str, str],
        is_continued: bool = False,
    ) -> Conversation | None:
        """The conversation with these tools and variables for the template; None if a rule is broken. If it is
        continued, the answer goes on with the last message. `names`: the client's names of a chat's fields."""
        if self.problems.found:
            return None
        own = Problems()
        made = read_conversation(
            own,
            self.messages,
            tools=tools,
            template_kwargs=variables,
            add_generation_prompt=not is_continued,
            continue_final_message=is_continued,
            max_chars=max_chars,
        )
        self.problems.found += respelled(replaced(own.found, self.places), names)
        return made

    def _append(self, field: str, text: str, place: str) -> None:
        message = self._assistants(place)
        message[field] = f"{message[field]}{BETWEEN_PARTS}{text}" if message.get(field) else text

    def _assistants(self, place: str) -> dict[str, Any]:
        """The last message if it is the assistant's, else a new one."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self._add({"role": "assistant", "content": None}, place)
        return self.messages[-1]

    def _add(self, message: dict[str, Any], place: str) -> None:
        self.messages.append(message)
        self.places.append(place)


def joined(texts: Iterable[str]) -> str:
    """The text of a content's parts: a text is the same content as the list with this one part."""
    return BETWEEN_PARTS.join(texts)


def got(kind: str) -> str:
    """The type that was sent, for the end of an error, if it may be named."""
    return f" (got {kind})" if KIND.fullmatch(kind) else ""
