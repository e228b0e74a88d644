"""An answer's text becomes a message: content, reasoning, and calls.

Owns the reading of answers. The result does not depend on how the text is cut into pieces. Pure; runs on the front's
event loop, with one Reader per answer. calls.py reads a call, dress.py decides on calls in another form.

A text that cannot be read is content, never an error:

- A call of a tool that is not offered is content: `{"name": NAME, "arguments": ARGUMENTS}`, without its markers.
- A JSON object between a call's markers that is no call is content, without the markers.
- Markers that no call follows are text that speaks of markers, and come back.
- A call is given out when its name is known and its arguments begin. Arguments that break later stand as far as they
  were given out. The rest of JSON arguments is given out as it is, up to the call's end; so they are no JSON, and the
  client sees what the model wrote. Tagged arguments are closed, and the rest is content.
- White space before a call, and at the end of an answer with calls, is not content.
- An answer that was cut gives out nothing of what is held back. So its message is the beginning of a longer answer's.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from worker.chat.calls import CallReader
from worker.chat.deltas import Arguments, Call, CallBegun, Content, Delta, Deltas, Message, Thought, message_of
from worker.chat.dress import FENCES, FIRST_KEYS, MAX_HELD, calls_in
from worker.chat.messages import MessageReader, thought
from worker.chat.scan import (
    Markers,
    NotACallError,
    Scan,
    Steps,
    after_space,
    after_string,
    after_token,
    after_tokens,
    after_value,
    char_at,
    tokens_of,
)
from worker.chat.values import loaded
from worker.wire.chat_format import ChatFormat
from worker.wire.names import NAME_KEYS

__all__ = ["Arguments", "Call", "CallBegun", "Content", "Delta", "Message", "Reader", "Thought", "message_of"]

_LANGUAGE: Final = re.compile(r"\w*")
_MAX_LANGUAGE: Final = 24
_MIN_STRAY: Final = 3
"""An end marker of fewer characters (`]`) is not looked for outside of calls."""


class Reader:
    """Reads one answer. Call push for each piece of its text, then finish once."""

    def __init__(
        self,
        form: ChatFormat,
        tools: Mapping[str, object],
        *,
        new_id: Callable[[int], str],
        is_reasoning: bool = False,
        is_divided: bool = False,
        reads_fenced: bool = True,
        is_sure: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """`tools` maps the names of the offered tools to the schemas of their arguments; empty if calls must not be
        read. `new_id` makes the id of a call from its index. `is_reasoning` says that the prompt has opened the
        reasoning. `is_divided` says that the engine has read messages with heads by their tokens. `reads_fenced` says
        that a fenced JSON object that is an offered tool's call is read as a call, if `is_sure` of its name.
        """
        self._form = form
        self._is_sure = is_sure
        is_harmony = form.calls is not None and form.calls.form == "harmony"  # whose head messages.py reads
        opening = "" if is_harmony else form.opening
        self._scan = Scan(opening)
        self._deltas = Deltas(tools, new_id, opening)
        self._is_reasoning = is_reasoning and form.reasoning is not None
        self._reads_fenced = reads_fenced and bool(tools)
        self._calls = CallReader(form.calls, self._scan, self._deltas) if form.calls else None
        self._messages: MessageReader | None = None
        if is_harmony and form.calls is not None and self._calls is not None:
            self._messages = MessageReader(form.calls, self._scan, self._deltas, self._calls, is_divided=is_divided)
        self._reads_calls = bool(tools) and form.calls is not None and not is_harmony
        self._section = tokens_of(form.calls.section_begin) if form.calls else ()
        self._section_end = tokens_of(form.calls.section_end) if form.calls else ()
        self._is_bare = self._reads_calls and not self._section and not (self._calls and self._calls.begin)
        self._n_attempts = 0
        self._speaks_of_markers = False
        self._openers = self._found_openers()
        self._markers = Markers(self._openers)
        self._steps = self._run()

    def push(self, text: str) -> list[Delta]:
        """Return the deltas that the text completes."""
        self._scan.push(text)
        next(self._steps, None)
        return self._deltas.taken()

    def finish(self, *, is_cut: bool = False) -> list[Delta]:
        """Return the deltas of the text that was held back. `is_cut` says that the answer ended at its length."""
        if is_cut:
            self._steps.close()
            return []
        self._scan.is_final = True
        for _ in self._steps:
            pass
        self._deltas.finish()
        return self._deltas.taken()

    def _found_openers(self) -> dict[str, Callable[[str], Steps[None]]]:
        """Return the markers that are looked for in content, and what reads the text behind each."""
        form, found = self._form, dict[str, Callable[[str], Steps[None]]]()
        if self._reads_fenced:
            found |= dict.fromkeys(FENCES, self._fence)
        if self._messages is not None:
            return found | self._messages.openers
        hidden = (form.content_begin, form.content_end, *form.hidden)
        found |= dict.fromkeys(filter(None, hidden), self._hide)
        if form.reasoning is not None:
            found[form.reasoning.end.strip()] = self._hide
            found[form.reasoning.begin.strip()] = self._think
        if form.calls is not None and self._calls is not None and self._reads_calls:
            ends = (*tokens_of(form.calls.call_end), *self._section_end)
            found |= dict.fromkeys((end for end in ends if len(end) >= _MIN_STRAY and end not in FENCES), self._stray)
            found |= {begin[0]: self._call_or_text for begin in (self._section, *self._calls.begins) if begin}
        return found

    def _run(self) -> Steps[None]:
        if self._messages is not None:
            yield from self._messages.begun(is_thought=self._is_reasoning)
        elif self._is_reasoning:
            yield from self._reasoning()
        while True:
            if self._deltas.is_fresh:
                yield from self._bare()
            marker = yield from self._content()
            if not marker:
                return
            yield from self._openers[marker](marker)

    def _content(self) -> Steps[str]:
        """Give out content up to a marker, and return the marker; nothing at the end of the answer."""
        while True:
            k, marker = self._markers.next(self._scan)
            self._deltas.say(self._scan.take(k))
            if marker:
                return (yield from self._longest_of(marker))
            if self._scan.is_final:
                return ""
            yield

    def _longest_of(self, marker: str) -> Steps[str]:
        """Return the longest marker that stands here, of those that begin with a marker that does."""
        for longer in self._markers.tokens:
            if len(longer) > len(marker) and longer.startswith(marker):
                end = yield from after_token(self._scan, 0, longer)
                if end >= 0:
                    return longer
        return marker

    def _hide(self, marker: str) -> Steps[None]:
        self._scan.take(len(marker))
        self._deltas.opening = ""
        return
        yield

    def _stray(self, marker: str) -> Steps[None]:
        """Hide an end marker behind a call; without a call it is text."""
        text = self._scan.take(len(marker))
        if not self._n_attempts or self._speaks_of_markers:
            self._deltas.say(text)
        else:
            self._deltas.drop_space()
        return
        yield

    # reasoning

    def _think(self, marker: str) -> Steps[None]:
        self._scan.take(len(marker))
        yield from self._reasoning()

    def _reasoning(self) -> Steps[None]:
        form = self._form
        if form.reasoning is None:
            return
        begins = (self._section, *self._calls.begins) if self._calls and self._reads_calls else ()
        calls = {begin[0]: self._read_calls for begin in begins if begin and form.reasoning.is_ended_by_call}
        yield from thought(self._scan, self._deltas, (form.reasoning.end.strip(),), calls)

    # calls between markers

    def _call_or_text(self, marker: str) -> Steps[None]:
        """Read the calls that a marker begins."""
        if (yield from self._read_calls()):
            return
        scan = self._scan
        end = yield from after_tokens(scan, 0, self._section)
        begin = yield from after_tokens(scan, max(end, 0), self._calls.begin if self._calls else ())
        inner = yield from after_space(scan, max(begin, end, len(marker)))
        char = yield from char_at(scan, inner)
        if not char or (char == "{" and self._form.calls is not None and self._form.calls.form == "object"):
            self._n_attempts += 1
            scan.take(inner)
            return
        self._speaks_of_markers = True
        self._deltas.say(scan.take(1))  # the marker may begin at the next character

    def _read_calls(self) -> Steps[bool]:
        """Read the section or the call that begins here. Return False if there is none."""
        if self._calls is None:
            return False
        k = 0
        if self._section:
            k = yield from after_tokens(self._scan, 0, self._section)
            if k < 0 and not self._calls.begin:
                return False
        is_section = bool(self._section) and k >= 0
        try:
            yield from self._calls.read(max(k, 0))
        except NotACallError:
            return False
        self._n_attempts += 1
        if is_section:
            yield from self._rest_of_section()
        return True

    def _rest_of_section(self) -> Steps[None]:
        """Read the other calls of a section, and its end."""
        while self._calls is not None:
            k = yield from after_space(self._scan, 0)
            if (yield from char_at(self._scan, k)) == ",":
                k += 1
            end = yield from after_tokens(self._scan, k, self._section_end)
            if self._section_end and end >= 0:
                self._scan.take(end)
                return
            try:
                yield from self._calls.read(k)
            except NotACallError:
                return

    # calls in another dress

    def _bare(self) -> Steps[None]:
        """Read an answer that is a JSON object without markers. In Llama's form each object at the beginning is a call;
        in other forms the whole answer must be one."""
        if not self._deltas.tools:
            return
        k = yield from after_space(self._scan, 0)
        if (yield from char_at(self._scan, k)) not in ("{", "["):
            return
        if self._is_bare and (yield from self._read_calls()):
            yield from self._other_bare()
        elif self._reads_fenced:
            yield from self._dressed(k, "")

    def _other_bare(self) -> Steps[None]:
        """Read the objects after the first in Llama's form, which some models divide by `;`."""
        while True:
            k = yield from after_space(self._scan, 0)
            if (yield from char_at(self._scan, k)) in (";", ","):
                k += 1
            try:
                yield from self._calls.read(k) if self._calls else iter(())
            except NotACallError:
                return

    def _fence(self, marker: str) -> Steps[None]:
        """Read a fenced block. It is a call, or its beginning is content."""
        k = len(marker)
        while (char := (yield from char_at(self._scan, k))) and _LANGUAGE.fullmatch(char) and k < _MAX_LANGUAGE:
            k += 1
        k = yield from after_space(self._scan, k)
        if (yield from char_at(self._scan, k)) in ("{", "[") and (yield from self._dressed(k, FENCES[marker])):
            return
        self._deltas.say(self._scan.take(len(marker)))

    def _dressed(self, k: int, end: str) -> Steps[bool]:
        """Read calls as JSON values from offset k to an end marker, or to the end of the answer. Return False if there
        are none."""
        if self._messages is not None and self._messages.is_headed:
            return False
        try:
            texts, k = yield from self._values(k, end)
        except NotACallError:
            return False
        calls = calls_in(texts, self._deltas.tools)
        if calls is None or not all(self._is_sure(name) for name, _ in calls):
            return False
        self._scan.take(k)
        for name, arguments in calls:
            self._deltas.begin(name)
            self._deltas.argue(arguments)
            self._deltas.end()
        return True

    def _values(self, k: int, end: str) -> Steps[tuple[list[str], int]]:
        texts: list[str] = []
        while True:
            k = yield from after_space(self._scan, k)
            char = yield from char_at(self._scan, k)
            if not char:
                return texts, k
            if end and texts and (after := (yield from after_token(self._scan, k, end))) >= 0:
                return texts, after
            if char == "," and texts:
                k = yield from after_space(self._scan, k + 1)
            yield from self._glance(k)
            after = yield from self._bounded(after_value(self._scan, k))
            texts.append(self._scan.ahead(k, after))
            k = after

    def _glance(self, k: int) -> Steps[None]:
        """Refuse an object early that is no call: by its first key, and by its name."""
        while (char := (yield from char_at(self._scan, k))) and char in "[{ \t\r\n":
            k += 1
        if char != '"':
            raise NotACallError
        end = yield from self._bounded(after_string(self._scan, k))
        key = loaded(self._scan.ahead(k, end))
        colon = yield from after_space(self._scan, end)
        if key not in FIRST_KEYS or (yield from char_at(self._scan, colon)) != ":":
            raise NotACallError
        k = yield from after_space(self._scan, colon + 1)
        if key in NAME_KEYS and (yield from char_at(self._scan, k)) == '"':
            end = yield from self._bounded(after_string(self._scan, k))
            if loaded(self._scan.ahead(k, end)) not in self._deltas.tools:
                raise NotACallError

    def _bounded(self, steps: Steps[int]) -> Steps[int]:
        """Run steps that hold back text, as long as it is not longer than a call."""
        end: int | None = None
        while end is None:
            try:
                next(steps)
            except StopIteration as stop:
                end = int(stop.value)
            else:
                if self._scan.n_ahead > MAX_HELD:
                    raise NotACallError
                yield
        if end > MAX_HELD:
            raise NotACallError
        return end
