"""Answers that are several messages with headers (gpt-oss, Muse), and reasoning between markers.

Owns the headers: a header's channel and recipient say whether its body is reasoning, content, or a call. Pure.

    <|start|>assistant<|channel|>commentary to=functions.N <|constrain|>json<|message|>{...}<|call|>
"""

import re
from collections.abc import Callable
from typing import Final

from worker.chat.calls import CallReader
from worker.chat.deltas import Deltas
from worker.chat.scan import (
    Markers,
    NotACallError,
    Scan,
    Steps,
    after_present,
    after_space,
    after_token,
    after_tokens,
    char_at,
    tokens_of,
)
from worker.wire.chat_format import CallFormat

_MESSAGE: Final = "<|message|>"
_ENDS: Final = ("<|end|>", "<|call|>", "<|return|>", "<|eom|>", "<|eot|>")
_BEGINS: Final = ("<|start|>", "<|channel|>", _MESSAGE)
_CHANNELS: Final = ("analysis", "self")
"""The channel and the recipient of reasoning."""
_PARTS: Final = ("<|start|>assistant", "<|channel|>", "<|constrain|>", "to=", _MESSAGE)
_WORD: Final = re.compile(r"[^\s<]*")
_MAX_PART: Final = 256


class MessageReader:
    """Reads the messages of one answer."""

    def __init__(self, form: CallFormat, scan: Scan, deltas: Deltas, calls: CallReader) -> None:
        self._form = form
        self._scan = scan
        self._deltas = deltas
        self._calls = calls
        self._section = tokens_of(form.section_begin)
        self._section_end = tokens_of(form.section_end)
        self.openers: dict[str, Callable[[str], Steps[None]]] = {
            **dict.fromkeys(_BEGINS, self._message),
            **dict.fromkeys(_ENDS, self._hide),
        }
        """The markers that are looked for in content, and what reads the text behind each."""

    def _hide(self, marker: str) -> Steps[None]:
        self._scan.take(len(marker))
        return
        yield

    def _message(self, marker: str) -> Steps[None]:
        """Read a header, and its body if that is not content."""
        try:
            channel, recipient, k = yield from self._header()
        except NotACallError:
            self._deltas.say(self._scan.take(len(marker)))
            return
        self._scan.take(k)
        self._deltas.opening = ""
        if recipient not in ("", "user", "assistant", *_CHANNELS):
            yield from self._call(recipient.removeprefix(self._form.name_prefix))
        elif channel in _CHANNELS or recipient in _CHANNELS:
            yield from thought(self._scan, self._deltas, (*_ENDS, "<|start|>"), {})

    def _header(self) -> Steps[tuple[str, str, int]]:
        """Return the channel, the recipient, and the offset of the body."""
        found, k = {"<|channel|>": "", "to=": ""}, 0
        while True:
            k = yield from after_space(self._scan, k)
            for part in _PARTS:
                end = yield from after_token(self._scan, k, part)
                if end >= 0:
                    break
            else:
                if not any(found.values()):
                    raise NotACallError
                part, end = "", k
            if part == _MESSAGE:
                return found["<|channel|>"], found["to="], end
            start = k = end
            if part != "<|start|>assistant":
                k = yield from self._word(end)
                if k == start:
                    raise NotACallError
                found[part] = self._scan.ahead(start, k)

    def _word(self, k: int) -> Steps[int]:
        start = k
        while True:
            match = _WORD.match(self._scan.text, self._scan.at + k)
            k = match.end() - self._scan.at if match else k
            if k - start > _MAX_PART:
                raise NotACallError
            if k < self._scan.n_ahead or self._scan.is_final:
                return k
            yield

    def _call(self, name: str) -> Steps[None]:
        """Read the body of a message to a tool. A body that is no call is content."""
        if self._form.parameter_begin:
            k = yield from after_tokens(self._scan, 0, self._section)
            try:
                yield from self._calls.read(max(k, 0))
            except NotACallError:
                return
            self._scan.take((yield from after_present(self._scan, 0, self._section_end)))
            return
        k = yield from after_space(self._scan, 0)
        if (yield from char_at(self._scan, k)) != "{":
            return
        self._scan.take(k)
        self._deltas.begin(name)
        yield from self._calls.json()
        self._deltas.end()


def thought(
    scan: Scan, deltas: Deltas, ends: tuple[str, ...], calls: dict[str, Callable[[], Steps[bool]]]
) -> Steps[None]:
    """Read reasoning up to one of the ends. A marker in `calls` ends it if what reads the call there says so."""
    deltas.begin_thought()
    markers = Markers((*ends, *calls))
    while True:
        k, marker = markers.next(scan)
        deltas.think(scan.take(k))
        if marker in ends:
            # The header of the message that ends this one by its beginning is read next.
            if marker != "<|start|>" or (yield from after_token(scan, 0, _PARTS[0])) < 0:
                scan.take(len(marker))
            break
        if marker:
            if (yield from calls[marker]()):
                break
            deltas.think(scan.take(1))  # the marker may begin at the next character
        elif scan.is_final:
            return
        else:
            yield
    deltas.skips_space = True
