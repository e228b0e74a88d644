"""Answers that are several messages with heads (gpt-oss, Muse), from head to body.

wire/harmony.py says what a head means. In a divided text, whose messages the engine has read by tokens, only calls are
left.
"""

import re
from collections.abc import Callable
from typing import Final

from worker.formats.read.calls import CallReader
from worker.formats.read.deltas import Deltas
from worker.formats.read.scan import MarkerSearch, NotACallError, Scan, Steps
from worker.wire import harmony
from worker.wire.chat_format import CallFormat

_START, _CHANNEL, _MESSAGE, _TYPE = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_BEGINS: Final = (_START, _CHANNEL)
_ENDS: Final = ("<|end|>", "<|call|>", "<|return|>", "<|eom|>", "<|eot|>")
_MARK: Final = re.compile("|".join(map(re.escape, (*_BEGINS, _MESSAGE, *_ENDS))))
_MAX_HELD: Final = 512
"""A head in a divided text has at most this many characters. In a whole one it may be a thought's mention."""


class MessageReader:
    """Reads the messages of one answer."""

    def __init__(self, form: CallFormat, scan: Scan, deltas: Deltas, calls: CallReader, *, is_divided: bool) -> None:
        self._form = form
        self._scan = scan
        self._deltas = deltas
        self._calls = calls
        self._is_divided = is_divided
        marks = (*_BEGINS, *_ENDS) if is_divided else (*_BEGINS, *_ENDS, _MESSAGE, _TYPE)
        self._marks, self._markers = marks, MarkerSearch(marks)
        self.openers: dict[str, Callable[[str], Steps[None]]] = dict.fromkeys(
            _BEGINS if is_divided else marks, self._messages
        )
        """The markers that are looked for in content, and what reads the text behind each."""
        self.is_headed = is_divided
        """True if a head has been read: what follows is the answer as it is."""

    def begun(self, *, is_thought: bool) -> Steps[None]:
        """Read the messages whose first head, or reasoning, the prompt has begun. If the model has left out the head,
        nothing is read."""
        scan = self._scan
        if is_thought:
            yield from self._messages("", is_thought=True)
        if is_thought or self._is_divided:
            return
        while (k := harmony.n_begun(scan.ahead(0))) == scan.n_ahead and not scan.is_final:
            yield
        is_head = k == scan.n_ahead and "to=" in scan.ahead(0)
        for marker in self._marks:
            is_head = is_head or (yield from scan.after_token(k, marker)) >= 0
        if is_head:
            yield from self._messages("")

    def thought(self) -> Steps[bool]:
        """Read reasoning up to a message's end, and the marker there. Return True if reasoning follows."""
        marker = yield from self._markers.up_to(self._scan, self._deltas.think)
        return bool(marker) and (yield from self._after(marker, is_thought=True))

    def _messages(self, marker: str, *, is_thought: bool = False) -> Steps[None]:
        """Read from a marker on, or from within a reasoning, until content follows."""
        is_thought = is_thought or (yield from self._after(marker, is_thought=False))
        while is_thought:
            is_thought = yield from self.thought()

    def _after(self, marker: str, *, is_thought: bool) -> Steps[bool]:
        """Read a marker, and the head and the call that it begins. Return True if reasoning follows."""
        scan = self._scan
        self.is_headed = True
        if marker in _ENDS:
            scan.take(len(marker))
            return False
        if marker in (_MESSAGE, _TYPE):
            text = scan.take(len(marker))
            if is_thought:
                self._deltas.think(text)
            return is_thought
        if self._is_divided and is_thought:
            return False
        k, end = yield from self._next(len(marker))
        role, header = (scan.ahead(0, k), None) if marker != _CHANNEL else ("", scan.ahead(len(marker), k))
        role = role.removeprefix(_START)
        if header is None and end == _CHANNEL:
            begin = k + len(end)
            k, end = yield from self._next(begin)
            header = scan.ahead(begin, k)
        return (yield from self._headed(role, header, k, end, is_thought=is_thought))

    def _headed(self, role: str, header: str | None, k: int, end: str, *, is_thought: bool) -> Steps[bool]:
        """Go on behind a head, which `end` ends at offset k."""
        is_ended = end == _MESSAGE
        body = harmony.body_of(role, header) if is_ended else "unknown"
        if self._is_divided and body != "call":
            self._deltas.say(self._scan.take(1))
            return False
        self._scan.take(k + (len(end) if is_ended else 0))
        if is_thought and end:
            self._deltas.think(harmony.mention(role, header, is_ended=is_ended))
        if body == "call":
            yield from self._call(harmony.recipient_of(role, header))
        return body != "content" if is_ended else is_thought

    def _next(self, k: int) -> Steps[tuple[int, str]]:
        """Return the offset of the next marker, and the marker; nothing if there is none."""
        scan = self._scan
        while (match := _MARK.search(scan.text, scan.at + k)) is None:
            if scan.is_final or (self._is_divided and scan.n_ahead > _MAX_HELD):
                return scan.n_ahead, ""
            yield
        return match.start() - scan.at, match[0]

    def _call(self, recipient: str) -> Steps[None]:
        """Read the call in the body of a message to a tool. Other text there is reasoning: the user is not spoken
        to, and a tool that is not offered is one that the model was trained with (`python`)."""
        scan, tools = self._scan, self._deltas.tools
        if self._form.parameter_begin and tools:
            k = yield from scan.after_tokens(0, self._calls.section)
            try:
                yield from self._calls.read(max(k, 0))
            except NotACallError:
                return
            scan.take((yield from scan.after_present(0, self._calls.section_end)))
            return
        name = recipient.removeprefix(self._form.name_prefix)
        k = yield from scan.after_space(0)
        char = yield from scan.char_at(k)
        if not tools or not name or (name == recipient and name not in tools) or self._form.parameter_begin:
            return
        is_empty = not char
        for marker in (*_BEGINS, *_ENDS):
            is_empty = is_empty or (yield from scan.after_token(k, marker)) >= 0
        if is_empty or char == "{":
            scan.take(k)
            self._deltas.begin(name)
            if is_empty:
                self._deltas.argue("{}")
            else:
                yield from self._calls.json()
            self._deltas.end()
            scan.take((yield from scan.after_space(0)))
