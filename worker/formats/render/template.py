"""A conversation and the model's own chat template become the prompt's text, with the parts that the template wrote.

Forms of a conversation that the template does not support become forms that it supports. Test renderings find these
forms when the template is loaded. One thread at a time.
"""

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import cast

import msgspec

from worker.formats.render.escapes import ControlNames, Escaper, Escapes, Json, Span, texts
from worker.formats.render.forms import REASONING, Forms, Message, in_forms, with_tools
from worker.formats.render.probes import Probes
from worker.formats.render.sandbox import Runaway, Sandbox, Unrendered
from worker.formats.render.tracers import Misplaced, Tracers
from worker.wire.messages import Violation
from worker.wire.prompts import Conversation

_MIN_FUEL, _FUEL_PER_CHAR, _MAX_FUEL = 2_000_000, 200, 10_000_000
"""The instructions of one rendering: 10 million take 0.3 s. A conversation needs two or three renderings, up to twelve
if the template does not support its form, and the same number again to find the refused message."""
_MIN_CHARS, _CHARS_PER_CHAR = 1 << 16, 16
"""The limit on a template's output: JSON with indents grows fourfold, and some templates write the tools twice."""
_GIVEN = frozenset({"messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"})
"""The names that every template gets, and the functions of the template language."""
_FUNCTIONS = frozenset({"namespace", "range", "dict", "debug", "lipsum", "cycler", "joiner", "loop", "caller", "self"})


_NUMBER = re.compile(r"^messages\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt. `controls` has the places in the text where the template wrote names of control tokens, if the
    conversation contains such names as plain text. None means that the template wrote all names in the text.
    """

    text: str
    controls: tuple[Span, ...] | None = None


class ChatTemplate:
    """One template. Raises: BrokenTemplate, also if it renders nothing or does not end."""

    def __init__(
        self, source: str, names: ControlNames, tokens: Mapping[str, str], variables: Mapping[str, Json]
    ) -> None:
        """`names`: the vocabulary's control tokens. `tokens`: the values of `bos_token` and similar names. `variables`:
        the template's further variables, unless the conversation overrides them."""
        self.source = source
        self._time = datetime.now()
        self._sandbox = Sandbox(source, lambda: self._time)
        self._escaper = Escaper(source, names)
        self._tokens = dict(tokens)
        self.keys = self._sandbox.variables - _GIVEN - _FUNCTIONS - self._tokens.keys()
        """The variables that the template reads in addition to the conversation."""
        self._variables = {key: value for key, value in variables.items() if key in self.keys}
        probes = Probes(source, self.in_forms, self._has_all)
        known = probes.contents()
        self.caps = known.caps
        """The parts that appear in the text: system, developer, tools, tool_calls, tool_results, reasoning."""
        without = probes.forms(known, has_tools=False)
        self.forms_without, self.forms_with = without, without
        """The forms of messages that the template supports without tools, and with them."""
        if "tools" in known.caps:
            self.forms_with = probes.forms(known, has_tools=True)

    def render(
        self, messages: list[Message], *, tools: Json, variables: dict[str, Json], is_open: bool, is_continued: bool
    ) -> Rendered:
        """The prompt. `variables`: the template's further variables. `is_open`: the text ends where an answer begins.
        `is_continued`: it ends in the last message's text. The template may change the arguments.

        Raises: Unrendered.
        """
        self._time = datetime.now()
        given = {"tools": tools, **self._variables, **variables, "add_generation_prompt": is_open}
        best = self.forms_with if tools else self.forms_without
        refusal: Unrendered | None = None
        moved: Rendered | None = None
        for forms in dict.fromkeys((best, *best.plainer())):
            try:
                found = self._found(messages, forms, given)
                rendered = self._rendered(messages, forms, given, is_continued=is_continued)
            except Runaway:
                raise
            except Unrendered as error:
                refusal = refusal or self._named(error, messages, forms, given)
                continue
            if found == Misplaced(None, None):
                return rendered
            if found.lost is None:
                moved = moved or rendered
            else:
                refusal = refusal or Unrendered(f"messages[{found.lost}]: the chat template omits its content")
        if moved is not None:
            return moved
        assert refusal is not None
        raise refusal

    def in_forms(self, messages: list[Message], forms: Forms, tools: Json, *, is_open: bool = True) -> str:
        """The prompt with the messages in these forms. Raises: Unrendered."""
        given = {"tools": tools, **self._variables, "add_generation_prompt": is_open}
        return self._rendered(messages, forms, given, is_continued=False).text

    def _has_all(self, messages: list[Message], forms: Forms, tools: Json) -> bool:
        given = {"tools": tools, **self._variables, "add_generation_prompt": True}
        return self._found(messages, forms, given) == Misplaced(None, None)

    def _found(self, messages: list[Message], forms: Forms, given: dict[str, Json]) -> Misplaced:
        """The messages that the rendering lost or moved. Raises: Unrendered."""
        unused = self._escaper.unused_in([cast(Json, messages), given])
        tracers = Tracers(unused, self._escaper.words)
        chat = _chat(tracers.put_into(messages), forms)
        return tracers.found_in(self._text({"messages": chat, **given}))

    def _named(self, error: Unrendered, messages: list[Message], forms: Forms, given: dict[str, Json]) -> Unrendered:
        """The refusal with the cause: the tools, or the first message that the template refuses.

        Raises: Runaway.
        """

        def takes(messages: list[Message], given: dict[str, Json]) -> bool:
            try:
                self._text({"messages": _chat(messages, forms), **given})
            except Runaway:
                raise
            except Unrendered:
                return False
            return True

        if given["tools"] and takes(messages, {**given, "tools": None}):
            return Unrendered(f"tools: {error}")
        taken = bisect_left(range(1, len(messages)), True, key=lambda n: not takes(messages[:n], given))
        return Unrendered(f"messages[{taken}]: {error}")

    def _rendered(
        self, messages: list[Message], forms: Forms, given: dict[str, Json], *, is_continued: bool
    ) -> Rendered:
        """Raises: Unrendered."""
        escapes = Escapes(self._escaper, [cast(Json, messages), given])
        if is_continued:
            messages = _appended(messages, escapes.cut + " ")
        values: dict[str, Json] = {"messages": _chat(messages, forms), **given}
        escaped_values = {name: escapes.escape(value) for name, value in values.items()}

        def text_of(given: Mapping[str, Json]) -> str:
            text = self._text(given)
            return _cut(text, escapes.cut) if is_continued else text

        if escaped_values == values:
            return Rendered(text_of(values))
        # This is read before the template may change the values.
        has_names = any(map(self._escaper.names.has_one, texts(values)))
        plain = text_of(values)
        try:
            escaped = text_of(escaped_values)
        except Unrendered:
            if has_names:
                raise
            return Rendered(plain)
        return self._with_controls(plain, escaped, escapes.restore(escaped), has_names=has_names)

    def _with_controls(self, plain: str, escaped: str, text: str, *, has_names: bool) -> Rendered:
        """The text with the control tokens that the template wrote. Normally `text`, which is `escaped` restored,
        equals `plain`. They may differ if the template inspects its values. Then `plain` is the prompt, if none of its
        control tokens can be from the conversation.
        """
        names = self._escaper.names
        controls = names.spans(escaped)
        if text != plain and not has_names:
            written = [escaped[start:end] for start, end in controls]
            if written == [plain[start:end] for start, end in names.spans(plain)]:
                return Rendered(plain)
        return Rendered(text, None if names.spans(text) == controls else tuple(controls))

    def _text(self, values: Mapping[str, Json]) -> str:
        n_chars = sum(map(len, texts(dict(values))))
        return self._sandbox.render(
            {"documents": None, **self._tokens, **values},
            fuel=min(_MIN_FUEL + _FUEL_PER_CHAR * n_chars, _MAX_FUEL),
            max_chars=_MIN_CHARS + _CHARS_PER_CHAR * n_chars,
        )


def _chat(messages: list[Message], forms: Forms) -> Json:
    return cast(Json, [_aliased(message) for message in in_forms(messages, forms)])


def _aliased(message: Message) -> Message:
    """The message with its reasoning under all names that templates read; Solar Open reads `reasoning` alone.

    Source: transformers, _alias_reasoning_fields, which leaves that name out.
    """
    reasoning = next((message[name] for name in REASONING if message.get(name) is not None), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, "reasoning": reasoning, **message, "reasoning_content": reasoning}


def _appended(chat: list[Message], text: str) -> list[Message]:
    """The messages with the text appended to the last one's. Raises: Unrendered if it has no text."""
    last = chat[-1] if chat else {}
    content = last.get("content")
    if last.get("tool_calls"):
        raise Unrendered("the final message ends with calls, so its text cannot be continued")
    if isinstance(content, str):
        return [*chat[:-1], {**last, "content": content + text}]
    parts = list(content) if isinstance(content, list) else []
    for place in reversed(range(len(parts))):
        part = parts[place]
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            parts[place] = {**part, "text": cast(str, part["text"]) + text}
            return [*chat[:-1], {**last, "content": parts}]
    raise Unrendered("the final message has no text to continue")


def _cut(text: str, cut: str) -> str:
    """The text before the cut, without the space that the template trimmed with it. Source: transformers,
    render_jinja_template. Raises: Unrendered."""
    place = text.rfind(cut)
    if place < 0:
        raise Unrendered("the chat template omits the final message's text, so it cannot be continued")
    return text[:place] if text[place + 1 : place + 2] == " " else text[:place].rstrip()


class ChatTemplates:
    """A model's template, and the one it may have for conversations with tools."""

    def __init__(
        self,
        default: str,
        tool_use: str | None,
        *,
        names: ControlNames,
        tokens: Mapping[str, str],
        variables: dict[str, Json],
    ) -> None:
        """`variables`: see ChatTemplate.

        Raises: BrokenTemplate.
        """
        self.default = ChatTemplate(default, names, tokens, variables)
        """The template for conversations without tools."""
        self.for_tools = self.default if tool_use is None else ChatTemplate(tool_use, names, tokens, variables)

    @property
    def keys(self) -> frozenset[str]:
        """The variables that the templates read in addition to a conversation."""
        return self.default.keys | self.for_tools.keys

    @property
    def known_variables(self) -> str:
        """The text that names the variables, for an error."""
        return f"the chat template reads {', '.join(sorted(self.keys)) or 'no variables'}"

    @property
    def caps(self) -> tuple[str, ...]:
        """The templates' features: supported forms of messages, and `kwargs.NAME` for each variable."""
        return (*sorted(self.default.caps | self.for_tools.caps), *sorted(f"kwargs.{key}" for key in self.keys))

    def read(self, conversation: Conversation) -> Rendered | Violation:
        """The prompt of the conversation, or the reason why there is none."""
        tools = _decoded(conversation.tools) if conversation.tools is not None else None
        given = cast(dict[str, Json], _decoded(conversation.template_kwargs))
        variables = {name: value for name, value in given.items() if name in self.keys}
        template = self.for_tools if tools else self.default
        messages = cast(list[Message], _decoded(conversation.messages))
        n_before = len(messages)
        if tools and "tools" not in template.caps:
            messages, tools = with_tools(messages, cast(list[Json], tools)), None
        try:
            return template.render(
                messages,
                tools=tools or None,
                variables=variables,
                is_open=conversation.add_generation_prompt,
                is_continued=conversation.continue_final_message,
            )
        except Unrendered as error:
            return Violation("messages", "chat_template", _renumbered(str(error), len(messages) - n_before))


def _renumbered(error: str, n_added: int) -> str:
    return _NUMBER.sub(lambda found: f"messages[{max(0, int(found[1]) - n_added)}]", error, count=1)


def _decoded(text: str) -> Json:
    return cast(Json, msgspec.json.decode(text))
