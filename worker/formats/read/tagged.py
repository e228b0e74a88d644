"""Arguments between markers of their own become deltas: a call in the tagged form, and in MiniMax M3's.

A value ends at its own end marker, or where another shows that it is left out.
"""

from contextlib import suppress
from typing import Final

from worker.formats.read.calls import CallReader, word
from worker.formats.read.deltas import Deltas
from worker.formats.read.literals import python_json
from worker.formats.read.plain_calls import MAX_HELD
from worker.formats.read.scan import MAX_ELEMENTS, MarkerSearch, NotACallError, Scan, Steps, Tag, tokens_of
from worker.formats.read.values import (
    STRING,
    escaped,
    is_value,
    items,
    json_of,
    loaded,
    may_be_json,
    member,
    quoted,
    types_of,
)
from worker.wire.chat_format import CallFormat

_EMPTY: Final = {"string": '""', "object": "{}", "array": "[]"}
_MAX_GLANCE: Final = 16
"""The number of a value's characters that show whether it can be JSON."""


class TaggedReader(CallReader):
    """Reads calls whose arguments stand between markers."""

    def __init__(self, form: CallFormat, scan: Scan, deltas: Deltas) -> None:
        super().__init__(form, scan, deltas)
        self._parameter_end = Tag(form.parameter_end.strip())
        self._call_ends = (*self.end, *self.section_end[:1])
        self._trims_line = form.parameter_end.startswith("\n")
        self._given = set[str]()  # the names of the call's arguments
        self._is_closed = False  # by the tag that was read last: <x/>

    def read(self, k: int) -> Steps[None]:
        """Read the call whose beginning is at offset k. A beginning without its first marker needs an offered name."""
        begun, k = yield from self._begun(k)
        name, own_id, k = yield from self._name(k)
        if begun != self.begin and name not in self._deltas.tools:
            raise NotACallError
        is_closed = self._scan.take(k).endswith("/>")
        self._deltas.begin(name, own_id)
        self._deltas.argue("{")
        schema = self._deltas.tools.get(name)
        self._given = set()
        while not is_closed and (key := (yield from self._next_parameter())) is not None:
            self._deltas.argue(f"{', ' if self._given else ''}{quoted(key)}: ")
            self._given.add(key)
            if self.form.form == "nested":
                yield from self._element(key, member(schema, schema, key), schema)
            else:
                yield from self._value(member(schema, schema, key), schema)
        self._deltas.argue("}")
        self._deltas.end()
        yield from self._finish()

    def is_closed_by(self, rest: str) -> bool:
        """Return True if a value ends at the rest's end, or the call somewhere in it."""
        return rest.rstrip().endswith(self._parameter_end) or any(end in rest for end in self._call_ends)

    def _next_parameter(self) -> Steps[str | None]:
        scan = self._scan
        while True:
            k = yield from scan.after_tokens(0, self._parameter_begin)
            if k >= 0:
                break
            k = yield from scan.after_space(0)
            k = -1 if self.form.form == "nested" else (yield from scan.after_token(k, self._parameter_end))
            if k < 0:
                return None
            scan.take(k)  # models write the end of a parameter twice
        key, k = yield from self._key_at(k)
        self._is_closed = bool(key) and scan.take(k).endswith("/>")
        return key or None

    def _key_at(self, k: int) -> Steps[tuple[str, int]]:
        """Return the argument's name at offset k, empty if there is none, and the offset behind its marker."""
        stops = tokens_of(self.form.parameter_name_end)
        try:
            end, _ = yield from self._find(k, stops[0])
        except NotACallError:
            return "", k
        key = self._scan.ahead(k, end).strip()
        if "<" in key or "\n" in key or (self.form.form == "nested" and key.startswith("/")):
            return "", k
        return word(key, self.form.parameter_begin), (yield from self._scan.after_present(end, stops))

    def _value(self, schema: object, root: object) -> Steps[None]:
        types = types_of(schema, root)
        if self.form.values != "schema":
            types = yield from self._marked_types(types)
        if self.form.parameter_name_end.endswith("\n") or self.form.mark_end.endswith("\n"):
            self._scan.take(max(0, (yield from self._scan.after_token(0, "\n"))))
        opening = yield from self._scan.after_token(0, "<![CDATA[")
        if opening >= 0 and self.form.parameter_begin.startswith("<param name"):
            self._scan.take(opening)
            yield from self._text(types, f"]]>{self._parameter_end}", root, is_plain=True)
            return
        yield from self._text(types, self._parameter_end, root)

    def _marked_types(self, types: frozenset[str]) -> Steps[frozenset[str]]:
        """Read the attribute of a value: return the types that it allows."""
        try:
            end, stop = yield from self._find(0, Tag(self.form.mark_end.strip()))
        except NotACallError:
            return types
        mark = self._scan.take(end).strip()
        self._is_closed = self._scan.take((yield from self._scan.after_token(0, stop))).endswith("/>")
        if mark == ("true" if self.form.values == "is_string" else "string"):
            return STRING
        return types - STRING if types - STRING else frozenset({"object", "array", "number", "boolean", "null"})

    def _text(self, types: frozenset[str], stop: str, root: object, *, is_plain: bool = False) -> Steps[None]:
        """Give out a value up to the marker `stop`, or to what shows that it is left out. `is_plain` says that the
        first one is its end. The last character waits: a line break before the end may be no part of the value."""
        if self._is_closed:
            self._deltas.argue(_json_of("", types))
            return
        scan, k, is_open = self._scan, 0, False
        others = (*self._parameter_begin[:1], *self._call_ends)
        stops = MarkerSearch((stop,) if stop.startswith("]]>") else (stop, *others))
        while True:
            k, marker = stops.next(scan, k)
            if k > 1 and (is_open or not may_be_json(scan.ahead(0, min(k, _MAX_GLANCE)), types)):
                self._deltas.argue(escaped(scan.take(k - 1)) if is_open else quoted(scan.take(k - 1))[:-1])
                is_open, k = True, 1
            after = (yield from scan.after_token(k, marker)) if marker else k
            if marker == stop and (is_plain or (yield from self._is_end(after))):
                break
            if marker:
                end = yield from self._after_mention(k, after, marker, (stop, is_plain), root)
                if end < 0:
                    after = after if marker == stop else k
                    break
                k = end
            elif scan.is_final:
                break
            else:
                yield
        text = scan.take(k)
        scan.take(after - k)
        if (self._trims_line and not is_plain) or marker not in (stop, ""):
            text = text.removesuffix("\n")
        self._deltas.argue(escaped(text) + '"' if is_open else _json_of(text, types))

    def _after_mention(self, k: int, after: int, marker: str, own: tuple[str, bool], root: object) -> Steps[int]:
        """Return the offset up to which a value's text goes on behind a marker at offset k. It is -1 if the value ends
        there, because its own end or the first end of the call is left out.

        The beginning of another argument ends it if the schema has one of this name that is not given yet, unless it is
        mentioned in a sentence, behind a space or a quote. The end of the call ends it if no own end follows before the
        answer's end or an offered tool's call. So the text behind it is held back, at most MAX_HELD characters.
        """
        scan, (stop, is_plain) = self._scan, own
        if marker == stop and (yield from self._after_one(after, self._call_ends)) < 0:
            return k + 1
        if marker in self._parameter_begin:
            key, _ = yield from self._key_at(after)
            before = scan.ahead(max(k - 1, 0), k)
            is_next = key not in self._given and member(root, root, key) is not None
            return -1 if is_next and (before.isalnum() or before in "\n.]})") else k + 1
        ends, limit = MarkerSearch((stop, *(begin[0] for begin in self.begins if begin))), k + MAX_HELD
        while after <= limit:
            after, marker = ends.next(scan, after)
            if after > limit:
                break
            if marker == stop:
                end = yield from scan.after_token(after, stop)
                if is_plain or (yield from self._is_end(end)):
                    return after
            elif (yield from self._is_offered(after)) if marker else scan.is_final:
                return -1
            if marker:
                after += 1
            else:
                yield
        return limit

    def _after_one(self, k: int, tokens: tuple[str, ...]) -> Steps[int]:
        """Return the offset after the one of the tokens that stands behind white space at offset k, or -1."""
        k, end = (yield from self._scan.after_space(k)), -1
        for token in tokens:
            end = max(end, (yield from self._scan.after_token(k, token)))
        return end

    def _is_offered(self, k: int) -> Steps[bool]:
        try:
            _, k = yield from self._begun(k)
            name, _, _ = yield from self._name(k)
        except NotACallError:
            return False
        return name in self._deltas.tools

    def _is_end(self, k: int) -> Steps[bool]:
        """Return True if the end marker before offset k is a value's true end. Then another argument or the call's end
        follows. The marker may be there twice."""
        scan = self._scan
        while True:
            k = yield from scan.after_space(k)
            if scan.is_final and k >= scan.n_ahead:
                return True
            follower = yield from self._after_one(k, (*self._parameter_begin[:1], *self.end[:1]))
            if follower >= 0 or (yield from self._is_offered(k)):
                return True
            again = yield from scan.after_token(k, self._parameter_end)
            if again < 0:
                return False
            k = again

    def _element(self, key: str, schema: object, root: object, depth: int = 0) -> Steps[None]:
        """Give out the value of an element of MiniMax M3's notation, up to its end. JSON may have any marker in its
        texts."""
        scan = self._scan
        stop = Tag(f"{self.form.parameter_end}{key}{self.form.parameter_name_end}")
        types = types_of(schema, root)
        is_begun = (yield from scan.after_token(0, self.form.parameter_begin)) >= 0
        is_ended = (yield from scan.after_token(0, self.form.parameter_end)) >= 0
        empty = next((text for kind, text in _EMPTY.items() if kind in types), "")
        k, end = 0, -1
        if types != STRING and (yield from scan.char_at(0)) in {'"', "{", "["}:
            with suppress(NotACallError):
                k = yield from scan.after_value(0)
        if k or (empty and is_ended):
            end = yield from scan.after_token(k, stop)
        if end >= 0:
            self._deltas.argue(json_of(scan.take(k), types) if k else empty)
            scan.take(end - k)
            return
        if types == STRING or not is_begun or is_ended or depth > MAX_ELEMENTS or self._is_closed:
            yield from self._text(types, stop, root, is_plain=True)
            return
        is_list, n_given = "array" in types, 0
        while (name := (yield from self._next_parameter())) is not None:
            if not n_given:
                is_list = is_list or (name == "item" and "object" not in types)
                self._deltas.argue("[" if is_list else "{")
            self._deltas.argue((", " if n_given else "") + ("" if is_list else f"{quoted(name)}: "))
            inner = items(schema, root) if is_list else member(schema, root, name)
            yield from self._element(name, inner, root, depth + 1)
            n_given += 1
        self._deltas.argue("null" if not n_given else "]" if is_list else "}")
        scan.take((yield from scan.after_present(0, (stop,))))


def _json_of(text: str, types: frozenset[str]) -> str:
    """Return the JSON text of a value. Templates without tojson write objects in Python's notation, and so may their
    models."""
    written = text.strip()
    if written[:1] in ("{", "[") and "string" not in types and not is_value(loaded(written)):
        text = python_json(written) or text
    return json_of(text, types)
