"""A conversation and the model's own chat template → the prompt's text, and which of it the template wrote.

Owns what is done to a conversation before a template sees it: forms that the template does not know become forms that
it knows, which is found out by rendering when the template is loaded. Pure but for the clock that templates may ask;
the template engine is sandbox.py's, the model and its tokens are the caller's. One thread at a time.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import cast

import msgspec

from worker.chat.marks import Json, Marker, Names, Span, texts
from worker.chat.sandbox import BrokenTemplate, Runaway, Sandbox, Unrendered
from worker.wire.messages import Conversation, Violation

Message = dict[str, Json]

_LEAST_FUEL, _FUEL_PER_CHAR, _MOST_FUEL = 2_000_000, 200, 10_000_000
"""Instructions of one rendering, of which there may be two: 10 million take 0.3 s."""
_LEAST_CHARS, _CHARS_PER_CHAR = 1 << 16, 16
"""What a template may write: JSON with indents grows fourfold, and some templates write the tools twice."""
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Fields that reasoning is passed in. Source: transformers, _alias_reasoning_fields."""
_GIVEN = frozenset({"messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"})
"""Names that a template is given anyway, or that are functions of its language."""
_FUNCTIONS = frozenset({"namespace", "range", "dict", "debug", "lipsum", "cycler", "joiner", "loop", "caller", "self"})


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt. `controls`: where in the text the template wrote names of control tokens, given where the conversation
    holds such names too, which are mere letters; None: all names in the text are the template's.
    """

    text: str
    controls: tuple[Span, ...] | None = None


@dataclass(frozen=True, slots=True)
class Forms:
    """Which forms of a conversation a template knows."""

    caps: frozenset[str] = frozenset()
    """Of system, developer, tools, tool_calls, tool_results, reasoning: what shows in the text."""
    takes_systems: bool = True
    """Whether several system messages may stand at the beginning."""
    takes_parts: bool = True
    takes_text: bool = True
    """Whether content may be a list of parts, or a text."""
    takes_null: bool = True
    """Whether a message that calls tools may have no content."""
    takes_argument_text: bool = True
    takes_argument_object: bool = True
    """Whether a call's arguments may be JSON text, or an object."""


class ChatTemplate:
    """One template. Raises: BrokenTemplate, also for one that renders nothing or comes to no end."""

    def __init__(self, source: str, names: Names, tokens: Mapping[str, str], told: Mapping[str, Json]) -> None:
        """`names`: the vocabulary's control tokens. `tokens`: what `bos_token` and its like are. `told`: what the
        template is told where a conversation says nothing else."""
        self.source = source
        self._time = datetime.now()
        self._sandbox = Sandbox(source, lambda: self._time)
        self._marker = Marker(source, names)
        self._tokens = dict(tokens)
        self.keys = self._sandbox.variables - _GIVEN - _FUNCTIONS - self._tokens.keys()
        """What the template may be told beside the conversation."""
        self._told = {key: value for key, value in told.items() if key in self.keys}
        self._forms = Forms()
        self._forms = _forms_of(self)

    @property
    def caps(self) -> frozenset[str]:
        return self._forms.caps

    def render(
        self, messages: list[Message], *, tools: Json, told: dict[str, Json], is_open: bool, is_continued: bool
    ) -> Rendered:
        """`told`: the template's further variables. `is_open`: the text ends where an answer begins; `is_continued`: it
        ends in the last message's text. The arguments are the template's own afterwards.

        Raises: Unrendered.
        """
        self._time = datetime.now()
        told = self._told | told
        marks = self._marker.marks_for([cast(Json, messages), tools, told])
        if is_continued:
            _append(messages, marks.cut + " ")
        chat = [_aliased(message) for message in self._known(messages)]
        values: dict[str, Json] = {"messages": cast(Json, chat), "tools": tools, **told}
        marked_values = {name: marks.mark(value) for name, value in values.items()}
        n_chars = sum(map(len, texts(values)))

        def text_of(given: Mapping[str, Json]) -> str:
            text = self._text(given, n_chars, is_open=is_open)
            return _cut(text, marks.cut) if is_continued else text

        if marked_values == values:
            return Rendered(text_of(values))
        # Before a template may change them.
        has_names = any(map(self._marker.names.has_one, texts(values)))
        plain = text_of(values)
        try:
            marked = text_of(marked_values)
        except Unrendered:
            if has_names:
                raise
            return Rendered(plain)
        return self._told_apart(plain, marked, marks.take_off(marked), has_names=has_names)

    def _told_apart(self, plain: str, marked: str, text: str, *, has_names: bool) -> Rendered:
        """Normally `text`, the marked one without its marks, is the plain one. Where the template looks into its values
        it need not be: the plain one counts where none of its control tokens can be the conversation's.
        """
        names = self._marker.names
        controls = names.spans(marked)
        if text != plain and not has_names:
            written = [marked[start:end] for start, end in controls]
            if written == [plain[start:end] for start, end in names.spans(plain)]:
                return Rendered(plain)
        return Rendered(text, None if names.spans(text) == controls else tuple(controls))

    def _text(self, values: Mapping[str, Json], n_chars: int, *, is_open: bool) -> str:
        return self._sandbox.render(
            {"documents": None, **self._tokens, **values, "add_generation_prompt": is_open},
            fuel=min(_LEAST_FUEL + _FUEL_PER_CHAR * n_chars, _MOST_FUEL),
            max_chars=_LEAST_CHARS + _CHARS_PER_CHAR * n_chars,
        )

    def _known(self, messages: list[Message]) -> list[Message]:
        """The messages in forms that the template knows."""
        forms = self._forms
        if "developer" not in forms.caps:
            messages = [{**one, "role": "system"} if one.get("role") == "developer" else one for one in messages]
        if not forms.takes_systems:
            messages = _with_one_system(messages)
        return [_in_form(message, forms) for message in messages]


# ── forms ────────────────────────────────────────────────────────────────────────────────────────


def _with_one_system(messages: list[Message]) -> list[Message]:
    n_systems = next((i for i, one in enumerate(messages) if one.get("role") != "system"), len(messages))
    if n_systems < 2:
        return messages
    content = "\n\n".join(_joined(message.get("content")) for message in messages[:n_systems])
    return [{**messages[0], "content": content}, *messages[n_systems:]]


def _joined(content: Json) -> str:
    """The text of a content of any form."""
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return content if isinstance(content, str) else ""


def _in_form(message: Message, forms: Forms) -> Message:
    changed = dict(message)
    content = message.get("content")
    if isinstance(content, list) and not forms.takes_parts:
        changed["content"] = _joined(content)
    elif isinstance(content, str) and not forms.takes_text:
        changed["content"] = [{"type": "text", "text": content}]
    elif content is None and not forms.takes_null:
        changed["content"] = ""
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        changed["tool_calls"] = [_call_in_form(call, forms) for call in calls]
    return changed


def _call_in_form(call: Json, forms: Forms) -> Json:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        return call
    arguments = function.get("arguments")
    if isinstance(arguments, str) and not forms.takes_argument_text:
        arguments = _object_of(arguments)
    elif isinstance(arguments, dict) and not forms.takes_argument_object:
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}} if arguments is not None else call


def _object_of(text: str) -> Json:
    """The object of which this is the JSON text, else the text."""
    try:
        return cast(Json, msgspec.json.decode(text, type=dict[str, object]))
    except msgspec.DecodeError:
        return text


def _aliased(message: Message) -> Message:
    """Source: transformers, _alias_reasoning_fields."""
    reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _append(chat: list[Message], text: str) -> None:
    """Put the text behind the last message's own. Raises: Unrendered where it has none."""
    content = chat[-1].get("content") if chat else None
    if isinstance(content, str):
        chat[-1] = {**chat[-1], "content": content + text}
        return
    parts = list(content) if isinstance(content, list) else []
    for place in reversed(range(len(parts))):
        part = parts[place]
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            parts[place] = {**part, "text": cast(str, part["text"]) + text}
            chat[-1] = {**chat[-1], "content": parts}
            return
    raise Unrendered("the final message has no text to continue")


def _cut(text: str, cut: str) -> str:
    """The text before the cut, without the space that the template trimmed with it. Source: transformers,
    render_jinja_template. Raises: Unrendered."""
    place = text.rfind(cut)
    if place < 0:
        raise Unrendered("the chat template leaves the final message's text out, so that it cannot be continued")
    return text[:place] if text[place + 1 : place + 2] == " " else text[:place].rstrip()


# ── what a template knows ────────────────────────────────────────────────────────────────────────

_USER: Message = {"role": "user", "content": "needle-user"}
_REPLY: Message = {"role": "assistant", "content": "needle-reply"}
_ARGUMENTS = '{"place": "needle-argument"}'
_TOOL: Json = {
    "type": "function",
    "function": {
        "name": "needle_tool",
        "description": "needle-description",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}


_RESULT: Message = {
    "role": "tool",
    "tool_call_id": "needle123",
    "name": "needle_tool",
    "content": "needle-result",
}


def _calling(arguments: Json, content: Json) -> Message:
    function: Json = {"name": "needle_tool", "arguments": arguments}
    return {
        "role": "assistant",
        "content": content,
        # Mistral's templates take no other length.
        "tool_calls": [{"id": "needle123", "type": "function", "function": function}],
    }


@dataclass
class _Trial:
    """What a template makes of conversations in all kinds of forms."""

    template: ChatTemplate
    refusals: list[str] = field(default_factory=list)

    def text(self, *messages: Message, tools: Json = None) -> str:
        """Empty where it refuses. Raises: BrokenTemplate."""
        try:
            found = self.template.render(list(messages), tools=tools, told={}, is_open=True, is_continued=False)
        except Runaway as error:
            raise BrokenTemplate(str(error)) from None
        except Unrendered as error:
            self.refusals.append(str(error))
            return ""
        return found.text

    def caps(self, arguments: Json) -> frozenset[str]:
        source = self.template.source
        developer: Message = {"role": "developer", "content": "needle-developer"}
        system: Message = {"role": "system", "content": "needle-system"}
        thinking: Message = {**_REPLY, "reasoning_content": "needle-reasoning"}
        calling, tools = _calling(arguments, ""), [_TOOL]
        thinking_call: Message = {**calling, "reasoning_content": "needle-reasoning"}
        shown = {
            "system": "needle-system" in self.text(system, _USER),
            # A template that writes any role at all knows none.
            "developer": "developer" in source and "needle-developer" in self.text(developer, _USER),
            "tools": "needle_tool" in self.text(_USER, tools=tools),
            "tool_calls": "needle-argument" in self.text(_USER, calling, _RESULT, _REPLY, _USER, tools=tools),
            "tool_results": "tool" in source and "needle-result" in self.text(_USER, calling, _RESULT, tools=tools),
            "reasoning": "needle-reasoning"
            in self.text(_USER, thinking) + self.text(_USER, thinking_call, _RESULT, tools=tools),
        }
        return frozenset(cap for cap, is_shown in shown.items() if is_shown)


def _forms_of(template: ChatTemplate) -> Forms:
    """Raises: BrokenTemplate."""
    trial = _Trial(template)
    parts: Json = [{"type": "text", "text": "needle-user"}]
    of_text, of_parts = trial.text(_USER), trial.text({**_USER, "content": parts})
    if "needle-user" not in of_text + of_parts:
        raise BrokenTemplate(trial.refusals[0] if trial.refusals else "it leaves out what the user says")
    of_argument_text = trial.text(_USER, _calling(_ARGUMENTS, ""), _RESULT, tools=[_TOOL])
    of_argument_object = trial.text(_USER, _calling({"place": "needle-argument"}, ""), _RESULT, tools=[_TOOL])
    takes_argument_text = _ARGUMENTS in of_argument_text
    arguments: Json = _ARGUMENTS if takes_argument_text else {"place": "needle-argument"}
    empty = trial.text(_USER, _calling(arguments, ""), tools=[_TOOL])
    null = trial.text(_USER, _calling(arguments, None), tools=[_TOOL])
    systems: list[Message] = [{"role": "system", "content": f"needle-{n}"} for n in (1, 2)]
    of_systems = trial.text(*systems, _USER)
    return Forms(
        caps=trial.caps(arguments),
        takes_systems="needle-1" in of_systems and "needle-2" in of_systems,
        takes_parts=of_parts == of_text or "needle-user" not in of_text,
        takes_text="needle-user" in of_text,
        takes_null=(bool(null) and "None" not in null) or not empty,
        takes_argument_text=takes_argument_text,
        takes_argument_object=not takes_argument_text or "needle-argument" in of_argument_object,
    )


# ── the templates of a model ─────────────────────────────────────────────────────────────────────


class ChatTemplates:
    """A model's template, and the one it may have for conversations with tools."""

    def __init__(
        self, default: str, tool_use: str | None, *, names: Names, tokens: Mapping[str, str], told: dict[str, Json]
    ) -> None:
        """`told`: what the templates are told where the conversation says nothing else.

        Raises: BrokenTemplate.
        """
        self.default = ChatTemplate(default, names, tokens, told)
        self._for_tools = self.default if tool_use is None else ChatTemplate(tool_use, names, tokens, told)

    @property
    def keys(self) -> frozenset[str]:
        """What the templates may be told beside a conversation."""
        return self.default.keys | self._for_tools.keys

    @property
    def what_it_can_be_told(self) -> str:
        return f"the chat template can be told {', '.join(sorted(self.keys)) or 'nothing'}"

    @property
    def caps(self) -> tuple[str, ...]:
        """What the templates know: forms of messages, and `kwargs.NAME` for what they may be told."""
        return (*sorted(self.default.caps | self._for_tools.caps), *sorted(f"kwargs.{key}" for key in self.keys))

    def read(self, conversation: Conversation) -> Rendered | Violation:
        """The prompt that the conversation becomes, or why it becomes none."""
        tools = _decoded(conversation.tools) if conversation.tools is not None else None
        told = cast(dict[str, Json], _decoded(conversation.template_kwargs))
        if not told.keys() <= self.keys:
            return Violation("chat_template_kwargs", "known_keys", self.what_it_can_be_told)
        template = self._for_tools if tools else self.default
        if tools and "tools" not in template.caps:
            return Violation("messages", "tools", "the chat template knows no tools")
        try:
            return template.render(
                cast(list[Message], _decoded(conversation.messages)),
                tools=tools or None,
                told=told,
                is_open=conversation.add_generation_prompt,
                is_continued=conversation.continue_final_message,
            )
        except Unrendered as error:
            return Violation("messages", "chat_template", str(error))


def _decoded(text: str) -> Json:
    return cast(Json, msgspec.json.decode(text))
