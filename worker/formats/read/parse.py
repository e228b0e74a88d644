"""An answer's text becomes a message: content, reasoning, and calls.

The result does not depend on how the text is cut into pieces. calls.py reads a call, plain_calls.py decides on calls in
another form.

A text that cannot be read is content, never an error:

- A call of a tool that is not offered is content: `{"name": NAME, "arguments": ARGUMENTS}`, without its markers.
- A JSON object between a call's markers that is no call is content, without the markers.
- Markers that no call follows are text that speaks of markers, and come back. The markers of a section that no text
  has by chance (control tokens, tags with a namespace) are never content; the text between them is.
- A call is given out when its name is known and its arguments begin. Arguments that break later stand as far as they
  were given out. The rest of JSON arguments is given out as it is, up to the call's end; so they are no JSON, and the
  client sees what the model wrote. Tagged arguments are closed, and the rest is content.
- White space before a call, and at the end of an answer with calls, is not content.
- A JSON object without markers that is a call is one when it is complete. An object that is not complete is content.
- A call that the answer ends in is not complete. Nothing of it is given out at the answer's end.
- Else an answer that was cut gives out no beginning of a marker. So its message is the beginning of a longer answer's.
- A complete call in the reasoning ends it, unless the reasoning goes on to its end marker: then it speaks of the call.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Literal

import msgspec

from worker.formats.read.calls import CallReader
from worker.formats.read.deltas import Arguments, Call, CallBegun, Content, Delta, Deltas, Message, Thought, message_of
from worker.formats.read.messages import MessageReader
from worker.formats.read.plain_calls import BETWEEN, FENCES, MAX_HELD, PlainCallReader
from worker.formats.read.scan import MarkerSearch, NotACallError, Scan, Steps, Tag
from worker.formats.read.tagged import TaggedReader
from worker.formats.read.values import is_value, loaded
from worker.wire.chat_format import CallFormat, ChatFormat

__all__ = ["Arguments", "Call", "CallBegun", "Content", "Delta", "Message", "Reader", "Thought", "message_of"]

_LANGUAGE: Final = re.compile(r"\w*")
_MAX_LANGUAGE: Final = 24
_CONTROL: Final = re.compile(r"</?[|｜][^<>]*>|<[^<>]*[|｜]>|</?\w+:[^<>]*>|\[[A-Z_]{3,}\]|\]<\]minimax\[>\[")
"""The markers that no text has by chance."""
_NO_CALLS: Final = CallFormat(form="object")
"""The notation of a model that has none."""
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
        ends_thoughts: bool = True,
        deltas: Deltas | None = None,
    ) -> None:
        """`tools` maps the names of the offered tools to the schemas of their arguments; empty if calls must not be
        read. `new_id` makes the id of a call from its index. `is_reasoning` says that the prompt has opened the
        reasoning. `is_divided` says that the engine has read messages with heads by their tokens. `reads_fenced` says
        that a fenced JSON object that is an offered tool's call is read as a call, if `is_sure` of its name.
        `ends_thoughts` says that a call may end the reasoning. `deltas` is where another Reader of the same answer
        collects.
        """
        self._form, calls = form, form.calls or _NO_CALLS
        is_harmony = calls.form == "harmony"  # whose head messages.py reads
        opening = "" if is_harmony else form.opening
        self._scan = Scan(opening if deltas is None else "")
        self._deltas = deltas or Deltas(tools, new_id, opening)
        self._plain = PlainCallReader(self._scan, self._deltas, is_sure)
        self._is_reasoning = is_reasoning and form.reasoning is not None
        self._reads_fenced = reads_fenced and bool(tools)
        self._calls = (TaggedReader if calls.parameter_begin else CallReader)(calls, self._scan, self._deltas)
        self._messages: MessageReader | None = None
        if is_harmony:
            self._messages = MessageReader(calls, self._scan, self._deltas, self._calls, is_divided=is_divided)
        self._reads_calls = bool(tools) and form.calls is not None and not is_harmony
        begins = (self._calls.section, *self._calls.begins) if self._reads_calls else ()
        self._begins = tuple(begin[0] for begin in begins if begin)
        """The markers that begin a call, or all calls."""
        self._is_bare = self._reads_calls and self._calls.is_bare
        self._enders = self._begins if ends_thoughts and form.reasoning is not None else ()
        """The markers that may end the reasoning."""
        self._thoughts: Reader | None = None
        """The Reader of reasoning that the engine has divided from the text."""
        self._ends_inside = self._is_closed = False
        """True if the reasoning has come to its end marker."""
        self._n_tried = 0
        """The number of characters that were read in vain for a call in the reasoning."""
        self._held: Literal["text", "call", "marker"] = "marker"
        """The text that is not read yet may be text as it is, or belong to a call, or begin a marker."""
        self._n_attempts = 0
        self._speaks_of_markers = False
        self._openers = self._found_openers()
        self._markers = MarkerSearch(self._openers)
        self._steps = self._run()

    @property
    def is_called(self) -> bool:
        """True if there are calls, and the answer does not end in one that is not complete."""
        return self._deltas.n_calls > 0 and not self.is_unfinished and not self._ends_inside

    @property
    def is_unfinished(self) -> bool:
        """True if the last call has begun and is not complete."""
        return self._deltas.is_open

    def push(self, text: str, *, is_thought: bool = False) -> list[Delta]:
        """Return the deltas that the text completes. `is_thought` says that the engine knows it as reasoning."""
        if is_thought and not self._enders:
            return [Thought(text)]
        if is_thought and self._thoughts is None:
            self._thoughts = Reader(self._form, self._deltas.tools, new_id=str, is_reasoning=True, deltas=self._deltas)
        if self._thoughts is not None and (is_thought or self._deltas.is_open):
            return self._thoughts.push(text)
        if self._thoughts is not None and text.strip():
            self._thoughts._is_closed = True
            found, self._thoughts = self._thoughts.finish(), None
            return found + self.push(text)
        self._scan.push(text)
        next(self._steps, None)
        return self._deltas.taken()

    def finish(self, *, is_cut: bool = False, is_stopped: bool = False) -> list[Delta]:
        """Return the deltas of the text that was held back. `is_cut` says that the answer ended at its length,
        `is_stopped` that it ended at a stop, or that its end may be missing."""
        found = [] if self._thoughts is None else self._thoughts.finish(is_cut=is_cut, is_stopped=is_stopped)
        is_torn = self._deltas.is_open and not self._calls.is_closed_by(self._scan.ahead(0))
        is_inside = self._deltas.is_open or self._held == "call"
        is_marker = self._held == "marker" or self._markers.next(self._scan) == (0, "")
        if is_torn or (is_cut and is_marker) or (is_inside and (is_cut or is_stopped)):
            rest, ends = self._scan.ahead(0).strip(), (*self._calls.end, *self._calls.section_end)
            self._ends_inside = is_inside and bool(rest) and not any(each.startswith(rest) for each in ends)
            self._steps.close()
            return found + self._deltas.taken()
        self._scan.is_final = True
        for _ in self._steps:
            pass
        self._deltas.finish()
        return found + self._deltas.taken()

    @property
    def _is_headed(self) -> bool:
        """True if a message's head has been read: its text is the answer as it is."""
        return self._messages is not None and self._messages.is_headed

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
        if self._reads_calls:
            found = dict.fromkeys(map(Tag, _CONTROL.findall(" ".join(form.markers))), self._stray) | found
            ends = (*self._calls.end, *self._calls.section_end)
            marks = dict.fromkeys((end for end in ends if len(end) >= _MIN_STRAY and end not in FENCES), self._stray)
            marks |= dict.fromkeys(self._begins, self._call_or_text)
            found = marks | found | marks  # as they stand there, not as the fences do
        return found

    def _run(self) -> Steps[None]:
        if self._messages is not None:
            yield from self._messages.begun(is_thought=self._is_reasoning)
        elif self._is_reasoning:
            yield from self._reasoning()
        while True:
            if self._deltas.is_fresh:
                yield from self._bare()
            self._held = "marker"
            marker = yield from self._markers.up_to(self._scan, self._deltas.say)
            if not marker:
                return
            yield from self._openers[marker](marker)

    def _taken(self, marker: str) -> Steps[str]:
        return self._scan.take((yield from self._scan.after_token(0, marker)))

    def _hide(self, marker: str) -> Steps[None]:
        yield from self._taken(marker)
        self._deltas.opening = ""
        if self._is_bare and not self._deltas.is_fresh:
            yield from self._bare()

    def _say(self, marker: str) -> Steps[None]:
        self._deltas.say((yield from self._taken(marker)))

    def _stray(self, marker: str) -> Steps[None]:
        """Hide an end marker behind a call; without a call it is text, if it may be."""
        text = yield from self._taken(marker)
        is_control = _CONTROL.match(marker) and marker in self._calls.section_end
        if is_control or (self._n_attempts and not self._speaks_of_markers):
            self._deltas.drop_space()
        else:
            self._deltas.say(text)

    def _think(self, marker: str) -> Steps[None]:
        yield from self._taken(marker)
        yield from self._reasoning()

    def _reasoning(self) -> Steps[None]:
        """Read reasoning up to its end. A call may end it."""
        if self._form.reasoning is None:
            return
        ends = (self._form.reasoning.end.strip(), *filter(_CONTROL.match, (self._form.content_begin,)))
        self._deltas.begin_thought()
        markers = MarkerSearch((*ends, *self._enders))
        while (marker := (yield from markers.up_to(self._scan, self._deltas.think))) not in ends:
            if not marker:
                return
            if (yield from self._call_in_thought()):
                break
            self._deltas.think(self._scan.take(1))  # the marker may begin at the next character
        else:
            self._scan.take(len(marker))
        self._deltas.skips_space = True

    def _call_in_thought(self) -> Steps[bool]:
        """Read the call that begins in the reasoning. Return False if it does not end the reasoning."""
        self._held = "text"
        ends = (yield from self._ends_thought()) and (yield from self._read_calls())
        self._held = "marker"
        return ends

    def _ends_thought(self) -> Steps[bool]:
        """Return True if a call of an offered tool begins here and ends the reasoning. In some forms its beginning ends
        it; in others the call is complete, and another call or the answer's end comes before the reasoning's end."""
        form = self._form
        assert form.reasoning is not None
        end, said, arguments, n_read = form.reasoning.end.strip(), "", "", 0
        alone = msgspec.structs.replace(form, reasoning=None, content_begin="", content_end="", hidden=())
        reader = Reader(alone, self._deltas.tools, new_id=str, reads_fenced=False)
        reader._openers[end] = reader._say
        reader._markers = MarkerSearch(reader._openers)
        while self._scan.n_ahead <= MAX_HELD and self._n_tried <= MAX_HELD:
            found, n_read = reader.push(self._scan.ahead(n_read)), self._scan.n_ahead
            for delta in found:
                match delta:
                    case CallBegun(0) if said or form.reasoning.is_ended_by_call:
                        return not said
                    case CallBegun(1) if not said or end in said:
                        return not said and is_value(loaded(arguments))
                    case Arguments(0, text):
                        arguments += text
                    case Content(text):
                        said += text
            if said and (not arguments or said.partition(end)[2].strip()):
                break
            if self._scan.is_final:
                return is_value(loaded(arguments)) and not self._is_closed
            yield
        self._n_tried += n_read
        return False

    def _call_or_text(self, marker: str) -> Steps[None]:
        self._held = "call"
        if (yield from self._read_calls()):
            return
        scan = self._scan
        end = yield from scan.after_tokens(0, self._calls.section)
        begin = yield from scan.after_tokens(max(end, 0), self._calls.begin)
        inner = yield from scan.after_space(max(begin, end, len(marker)))
        char = yield from scan.char_at(inner)
        if not char or (char == "{" and self._calls.form.form == "object"):
            self._n_attempts += 1
            scan.take(inner)
            return
        if _CONTROL.match(marker):
            self._n_attempts += 1
            yield from self._taken(marker)
            scan.take((yield from scan.after_space(0)))
            return
        self._speaks_of_markers = True
        self._deltas.say(scan.take(1))  # the marker may begin at the next character

    def _read_calls(self) -> Steps[bool]:
        calls, k = self._calls, 0
        if calls.section:
            k = yield from self._scan.after_tokens(0, calls.section)
            if k < 0 and not calls.begin:
                return False
        is_section = bool(calls.section) and k >= 0
        try:
            yield from calls.read(max(k, 0))
        except NotACallError:
            return False
        self._n_attempts += 1
        if is_section:
            yield from self._rest_of_section()
        return True

    def _rest_of_section(self) -> Steps[None]:
        scan, section_end = self._scan, self._calls.section_end
        with suppress(NotACallError):
            while True:
                k = yield from scan.after_space(0)
                if (yield from scan.char_at(k)) == ",":
                    k += 1
                end = yield from scan.after_tokens(k, section_end)
                if section_end and end >= 0:
                    scan.take(end)
                    return
                yield from self._calls.read(k)

    def _bare(self) -> Steps[None]:
        """Read an answer that begins with JSON objects without markers, in Llama's form or in another."""
        if not self._deltas.tools:
            return
        k = yield from self._scan.after_space(0)
        if (yield from self._scan.char_at(k)) not in ("{", "["):
            return
        self._held = "text"
        if self._is_bare and (yield from self._read_calls()):
            with suppress(NotACallError):
                while True:  # some models divide the objects by `;`
                    yield from self._calls.read((yield from self._scan.after_space(0, BETWEEN)))
        elif self._reads_fenced and not self._is_headed:
            yield from self._plain.read(k, "")

    def _fence(self, marker: str) -> Steps[None]:
        """Read a fenced block. It is a call, or its beginning is content."""
        self._held = "text"
        k = len(marker)
        while (char := (yield from self._scan.char_at(k))) and _LANGUAGE.fullmatch(char) and k < _MAX_LANGUAGE:
            k += 1
        k = yield from self._scan.after_space(k)
        is_begun = not self._is_headed and (yield from self._scan.char_at(k)) in ("{", "[")
        if is_begun and (yield from self._plain.read(k, FENCES[marker])):
            return
        self._deltas.say(self._scan.take(len(marker)))
