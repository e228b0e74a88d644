"""The form of a conversation: messages in OpenAI's shape become the `Conversation` that the engine's template renders.

Owns: the keys of a message that are read, the form in which templates expect them (content as one text, a call's
arguments as an object), the limits, and the error texts. Both APIs use it, `/execute` and `/v1`. Pure.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from worker.protocol.bodies import MAX_ERRORS, FieldError, FieldsRefused, shaped
from worker.protocol.constraints import MAX_BYTES, MAX_DEPTH
from worker.protocol.unread import unread
from worker.wire.encoding import doc, encode_json
from worker.wire.prompts import Conversation

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
MAX_MESSAGES = 2048
MAX_CALLS = 128
"""The most calls of one message, the same as OpenAI's. With the other limits a conversation fits in a frame."""

_BETWEEN_PARTS = "\n"
"""The separator of the parts of a content, the same as in llama-server and vLLM."""

_KIND_OF_PART = re.compile(r"[a-z_]{1,32}")
"""An answer may name a part's type of this form, e.g. `image_url`, but no text that was sent by mistake."""


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
        str | list[Part] | UnsetType | None,
        doc("A text or a list of parts. Only an assistant's message may omit it."),
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


def conversation(
    messages: object,
    *,
    tools: object = None,
    template_kwargs: object = None,
    add_generation_prompt: bool | None = None,
    continue_final_message: bool = False,
    max_chars: int,
) -> Conversation:
    """The conversation from values that msgspec.json.decode returned. None for add_generation_prompt means true unless
    the answer continues the final message.

    `max_chars` limits the Unicode scalar values in the texts of all messages together, and in the JSON of `tools`.
    Raises: FieldsRefused with at most MAX_ERRORS broken rules, which quote no text.
    """
    errors: list[FieldError] = []
    read = _messages(messages, max_chars, errors)
    kwargs = {} if template_kwargs is None else template_kwargs
    goes_on = "continue_final_message" if continue_final_message else _prefix_field(messages)
    is_open = goes_on is None if add_generation_prompt is None else add_generation_prompt
    made = Conversation(
        messages=_json(read),
        tools=None if tools is None else _limited("tools", tools, list[dict[str, Any]], max_chars, errors),
        template_kwargs=_limited("chat_template_kwargs", kwargs, dict[str, Any], MAX_BYTES, errors),
        add_generation_prompt=is_open,
        continue_final_message=goes_on is not None,
    )
    if goes_on is not None:
        errors += _continuation_errors(goes_on, read, add_generation_prompt=is_open)
    if errors:
        raise FieldsRefused(errors[:MAX_ERRORS])
    return made


def entries(field: str, raw: object, errors: list[FieldError]) -> list[Any]:
    """The entries of a conversation. The errors gain one if there are none or too many; then none is returned."""
    if raw is None:
        errors.append(_error(field, "required", f"{field} is missing"))
        return []
    found: list[Any] = shaped(field, raw, list[Any], errors) or []
    if raw == []:
        errors.append(_error(field, "non_empty", f"{field} must not be empty"))
    if len(found) > MAX_MESSAGES:
        text = f"{field} must have at most {MAX_MESSAGES} entries (got {len(found)})"
        errors.append(_error(field, f"max_count({MAX_MESSAGES})", text))
        return []
    return found


def unread_members(messages: object) -> Iterator[str]:
    """Yield the places of members that are not null and have no effect, spelled as in `unread`."""
    yield from unread("messages", messages, Message)
    match messages:
        case [*before, _] if any(isinstance(one, dict) and one.get("prefix") for one in before):
            yield "messages.prefix"


# ── messages ─────────────────────────────────────────────────────────────────────────────────────


def _messages(raw: object, max_chars: int, errors: list[FieldError]) -> list[Message]:
    """The valid messages in the form that templates expect. The errors gain an entry for each broken rule."""
    read = []
    for at, one in enumerate(entries("messages", raw, errors)):
        if len(errors) >= MAX_ERRORS:
            return []
        message = shaped(f"messages[{at}]", one, Message, errors)
        if message is None:
            continue
        broken = list(islice(_message_errors(f"messages[{at}]", message), MAX_ERRORS))
        errors += broken
        if not broken:
            read.append(_as_templates_expect(message))
    n_chars = sum(len(text) for message in read for text in _texts(message))
    if n_chars > max_chars:
        text = f"messages must be at most {max_chars} characters together (got {n_chars})"
        errors.append(_error("messages", f"length(1..={max_chars})", text))
    return read


def _message_errors(place: str, message: Message) -> Iterator[FieldError]:
    if message.role not in ROLES:
        yield _error(f"{place}.role", "role", f"{place}.role must be one of {', '.join(ROLES)}")
    if isinstance(message.content, list):
        yield from part_errors(f"{place}.content", message.content)
    elif not isinstance(message.content, str) and message.role != "assistant":
        text = f"{place}.content is missing; send a text, which may be empty"
        yield _error(f"{place}.content", "required", text)
    for field in ("tool_calls", "function_call"):
        if getattr(message, field) and message.role != "assistant":
            text = f"{place}.{field} is allowed in an assistant's message only; remove it, or change the role"
            yield _error(f"{place}.{field}", "role(assistant)", text)
    if message.tool_calls and message.function_call:
        text = f"{place}.function_call cannot go with tool_calls; send one of them"
        yield _error(f"{place}.function_call", "exclusive(tool_calls)", text)
    if (n_calls := len(message.tool_calls or ())) > MAX_CALLS:
        text = f"{place}.tool_calls must have at most {MAX_CALLS} entries (got {n_calls})"
        yield _error(f"{place}.tool_calls", f"max_count({MAX_CALLS})", text)
    for at, call in enumerate(message.tool_calls or ()):
        where = f"{place}.tool_calls[{at}]"
        if call.type != "function":
            text = f"{where}.type must be function, the only supported type"
            yield _error(f"{where}.type", "function_only", text)
        yield from _depth_errors(f"{where}.function.arguments", call.function.arguments)
    if message.function_call:
        yield from _depth_errors(f"{place}.function_call.arguments", message.function_call.arguments)


def part_errors(place: str, parts: list[Part]) -> Iterator[FieldError]:
    """Yield an error for each part that is not a text."""
    for at, part in enumerate(parts):
        where = f"{place}[{at}]"
        if part.type != "text":
            named = f" (got {part.type})" if _KIND_OF_PART.fullmatch(part.type) else ""
            text = f"{where}.type must be text, the only type that this worker reads{named}; remove the part"
            yield _error(f"{where}.type", "text_only", text)
        elif part.text is UNSET:
            yield _error(f"{where}.text", "required", f"{where}.text is missing; send a text, which may be empty")


def _prefix_field(messages: object) -> str | None:
    """The place of `prefix` if the last message asks the answer to continue it; else None."""
    match messages:
        case [*before, {"prefix": True}]:
            return f"messages[{len(before)}].prefix"
        case _:
            return None


def _continuation_errors(field: str, read: list[Message], *, add_generation_prompt: bool) -> Iterator[FieldError]:
    """Yield the reasons why the answer cannot continue the last message, as `field` asks."""
    if add_generation_prompt:
        text = f"{field} cannot go with add_generation_prompt; send one of them"
        yield _error(field, "exclusive(add_generation_prompt)", text)
    if read and (read[-1].role != "assistant" or not isinstance(read[-1].content, str)):
        text = f"{field} needs a last message by the assistant with a text to continue"
        yield _error(field, "last_message(assistant)", text)


def _calls(message: Message) -> list[ToolCall]:
    """The message's calls, under either field name."""
    if message.function_call:
        return [ToolCall(function=message.function_call)]
    return message.tool_calls or []


def _reasoning(message: Message) -> str | None:
    return message.reasoning_content or message.reasoning


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
    calls = [replace(call, function=_with_object(call.function)) for call in _calls(message)]
    if isinstance(content, list):
        content = _BETWEEN_PARTS.join(part.text for part in content if isinstance(part.text, str))
    if content is UNSET or content is None:
        content = None if calls else ""
    return replace(
        message,
        content=content,
        reasoning_content=_reasoning(message),
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
    if not isinstance(read, dict) or any(_depth_errors("", read)):
        return called
    return replace(called, arguments=read)


# ── any JSON ─────────────────────────────────────────────────────────────────────────────────────


def _limited(field: str, raw: object, shape: type[Any], max_chars: int, errors: list[FieldError]) -> str:
    """The value as JSON. Add an error if it has another type, is nested too deeply, or is longer than `max_chars`."""
    if shaped(field, raw, shape, errors) is None:
        return ""
    if deep := list(_depth_errors(field, raw)):
        errors += deep
        return ""
    text = _json(raw)
    if len(text) > max_chars:
        message = f"{field} must be at most {max_chars} characters as compact JSON (got {len(text)})"
        errors.append(_error(field, f"length(..={max_chars})", message))
    return text


def _depth_errors(field: str, value: object) -> Iterator[FieldError]:
    """The error for a value that is nested deeper than MAX_DEPTH. An encoder or decoder of JSON recurses once for each
    level."""
    level, depth = [value], 0
    while level and depth < MAX_DEPTH:
        level = [inner for outer in level for inner in _inside(outer) if isinstance(inner, dict | list)]
        depth += 1
    if level:
        yield _error(field, f"max_depth({MAX_DEPTH})", f"{field} must be nested at most {MAX_DEPTH} deep")


def _inside(value: object) -> Iterable[object]:
    match value:
        case dict():
            return value.values()
        case list():
            return value
        case _:
            return ()


def _json(value: object) -> str:
    return encode_json(value).decode()


def _error(field: str, constraint: str, message: str) -> FieldError:
    return FieldError(field=field, constraint=constraint, message=message)
