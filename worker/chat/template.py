"""A conversation and the model's own chat template → the prompt's text, and which of it the template wrote.

Owns what is done to a conversation before a template sees it: forms that the template does not know become forms that
it knows, which is found out by rendering when the template is loaded. Pure but for the clock that templates may ask;
the template engine is sandbox.py's, the model and its tokens are the caller's. One thread at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import cast

import msgspec

from worker.chat.forms import REASONING, Forms, Message, in_forms
from worker.chat.marks import Json, Marker, Names, Span, texts
from worker.chat.probes import contents_known, forms_known
from worker.chat.sandbox import Runaway, Sandbox, Unrendered
from worker.chat.witnesses import Found, Witnesses
from worker.wire.messages import Conversation, Violation

_LEAST_FUEL, _FUEL_PER_CHAR, _MOST_FUEL = 2_000_000, 200, 10_000_000
"""Instructions of one rendering: 10 million take 0.3 s. There are two or three of a conversation, up to twelve where
the template does not know it as it is, and as many again to say what it refuses."""
_LEAST_CHARS, _CHARS_PER_CHAR = 1 << 16, 16
"""What a template may write: JSON with indents grows fourfold, and some templates write the tools twice."""
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
        known = contents_known(self)
        self.caps = known.caps
        """The parts that show in the text: system, developer, tools, tool_calls, tool_results, reasoning."""
        without = forms_known(self, known, has_tools=False)
        self._forms = {False: without, True: without}
        if "tools" in known.caps:
            self._forms[True] = forms_known(self, known, has_tools=True)

    def render(
        self, messages: list[Message], *, tools: Json, told: dict[str, Json], is_open: bool, is_continued: bool
    ) -> Rendered:
        """`told`: the template's further variables. `is_open`: the text ends where an answer begins; `is_continued`: it
        ends in the last message's text. The arguments are the template's own afterwards.

        Raises: Unrendered.
        """
        self._time = datetime.now()
        given: dict[str, Json] = {"tools": tools, **self._told, **told}
        best = self._forms[bool(tools)]
        refusal: Unrendered | None = None
        moved: Rendered | None = None
        for forms in dict.fromkeys((best, *best.plainer())):
            try:
                found = self._found(messages, forms, given, is_open=is_open)
                rendered = self._rendered(messages, forms, given, is_open=is_open, is_continued=is_continued)
            except Runaway:
                raise
            except Unrendered as error:
                refusal = refusal or self._named(error, messages, forms, given, is_open=is_open)
                continue
            if found == Found(None, None):
                return rendered
            if found.lost is None:
                moved = moved or rendered
            else:
                refusal = refusal or Unrendered(f"messages[{found.lost}]: the chat template leaves out what it says")
        if moved is not None:
            return moved
        assert refusal is not None
        raise refusal

    def in_forms(self, messages: list[Message], forms: Forms, *, tools: Json) -> str:
        """See probes.Template."""
        given = {"tools": tools, **self._told}
        return self._rendered(messages, forms, given, is_open=True, is_continued=False).text

    def says(self, messages: list[Message], forms: Forms, *, tools: Json) -> bool:
        """See probes.Template."""
        return self._found(messages, forms, {"tools": tools, **self._told}, is_open=True) == Found(None, None)

    def _found(self, messages: list[Message], forms: Forms, given: dict[str, Json], *, is_open: bool) -> Found:
        """The messages that the rendering lost or moved. Raises: Unrendered."""
        unused = self._marker.unused_in([cast(Json, messages), given])
        witnesses = Witnesses(unused, self._marker.words)
        chat = _chat(witnesses.put_into(messages), forms)
        text = self._text({"messages": chat, **given}, is_open=is_open)
        return witnesses.found_in(text)

    def _named(
        self, error: Unrendered, messages: list[Message], forms: Forms, given: dict[str, Json], *, is_open: bool
    ) -> Unrendered:
        """The refusal with what the template refuses: the tools, or a message, where it takes the messages before it.

        Raises: Runaway.
        """

        def takes(messages: list[Message], given: dict[str, Json]) -> bool:
            try:
                self._text({"messages": _chat(messages, forms), **given}, is_open=is_open)
            except Runaway:
                raise
            except Unrendered:
                return False
            return True

        if given["tools"] and takes(messages, {**given, "tools": None}):
            return Unrendered(f"tools: {error}")
        taken, refused = 0, len(messages)
        while refused - taken > 1:
            n = (taken + refused) // 2
            taken, refused = (n, refused) if takes(messages[:n], given) else (taken, n)
        return Unrendered(f"messages[{taken}]: {error}")

    def _rendered(
        self, messages: list[Message], forms: Forms, given: dict[str, Json], *, is_open: bool, is_continued: bool
    ) -> Rendered:
        """Raises: Unrendered."""
        marks = self._marker.marks_for([cast(Json, messages), given])
        if is_continued:
            messages = _appended(messages, marks.cut + " ")
        values: dict[str, Json] = {"messages": _chat(messages, forms), **given}
        marked_values = {name: marks.mark(value) for name, value in values.items()}

        def text_of(given: Mapping[str, Json]) -> str:
            text = self._text(given, is_open=is_open)
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

    def _text(self, values: Mapping[str, Json], *, is_open: bool) -> str:
        n_chars = sum(map(len, texts(dict(values))))
        return self._sandbox.render(
            {"documents": None, **self._tokens, **values, "add_generation_prompt": is_open},
            fuel=min(_LEAST_FUEL + _FUEL_PER_CHAR * n_chars, _MOST_FUEL),
            max_chars=_LEAST_CHARS + _CHARS_PER_CHAR * n_chars,
        )


# ── texts ────────────────────────────────────────────────────────────────────────────────────────


def _chat(messages: list[Message], forms: Forms) -> Json:
    return cast(Json, [_aliased(message) for message in in_forms(messages, forms)])


def _aliased(message: Message) -> Message:
    """Source: transformers, _alias_reasoning_fields."""
    reasoning = next((message[name] for name in REASONING if message.get(name) is not None), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _appended(chat: list[Message], text: str) -> list[Message]:
    """The messages with the text behind the last one's own. Raises: Unrendered where it has none."""
    last = chat[-1] if chat else {}
    content = last.get("content")
    if last.get("tool_calls"):
        raise Unrendered("the final message ends with calls, so that its text cannot go on")
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
        raise Unrendered("the chat template leaves the final message's text out, so that it cannot be continued")
    return text[:place] if text[place + 1 : place + 2] == " " else text[:place].rstrip()


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
        return f"the chat template reads {', '.join(sorted(self.keys)) or 'no variables'}"

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
