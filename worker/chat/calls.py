"""One call in the model's own notation becomes deltas.

Owns the reading of a single call in each form of wire/chat_format.py. A call is read up to its name before anything is
given out; a text that is no call until there raises NotACallError, and nothing is consumed. Pure.
"""

import re
from typing import Final

from worker.chat.deltas import Deltas
from worker.chat.literals import gap, literal, mapping, python_json
from worker.chat.scan import (
    MAX_ELEMENTS,
    Markers,
    NotACallError,
    Scan,
    Steps,
    after_present,
    after_space,
    after_string,
    after_token,
    after_tokens,
    after_value,
    char_at,
    nested,
    tokens_of,
)
from worker.chat.values import (
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

_NAME: Final = re.compile(r"[\w.:/@$-]+")
_MAX_NAME: Final = 256
_WORD: Final = re.compile(r"[\w.:/-]*")
_IN_STRING: Final = re.compile(r'["\\]')
_IN_JSON: Final = re.compile(r'["{}\[\]]')
_MAX_GLANCE: Final = 16
"""The number of a value's characters that show whether it can be JSON."""
_ARGUMENT_KEYS: Final = ("arguments", "parameters")


class CallReader:
    """Reads the calls of one answer, each from the scan's text into deltas."""

    def __init__(self, form: CallFormat, scan: Scan, deltas: Deltas) -> None:
        self._form = form
        self._scan = scan
        self._deltas = deltas
        self.begin = tokens_of(form.call_begin)
        self.begins = (self.begin, *(tokens_of(form.call_begin.removeprefix(one)) for one in form.skippable))
        """The markers that begin a call, the whole one first."""
        self._end = tokens_of(form.call_end)
        self._loose_end = ("}", *self._end) if form.form == "object" else self._end
        """The end as models write it: small ones close an object once too often."""
        self._is_bare = not self.begin and not form.section_begin
        """True if nothing but an offered name shows that an object is a call."""
        self._parameter_begin = tokens_of(form.parameter_begin)
        self._parameter_end = form.parameter_end.strip()
        self._value_stops = (self._parameter_end, "\n" + self._parameter_end)
        self._trims_line = form.parameter_end.startswith("\n")
        self._name_end = tokens_of(form.name_end)
        self._name_stop = self._stop_of_names()

    def _stop_of_names(self) -> re.Pattern[str]:
        """Return the pattern of what may end a name."""
        form = self._form
        stops = [form.id_begin, *self._name_end[:1]]
        match form.form:
            case "tagged" | "nested":
                stops += [*self._parameter_begin[:1], *self._end[:1]]
            case "python":
                stops = ["("]
            case "gemma":
                stops = ["{"]
            case _ if not self._name_end:
                stops.append("{")
            case _:
                stops += self._end[:1]
        return re.compile("|".join(re.escape(stop) for stop in sorted(filter(None, stops), key=len, reverse=True)))

    def read(self, k: int) -> Steps[None]:
        """Read the call whose beginning is at offset k."""
        begun, after = self.begin, -1
        for begun in self.begins:
            after = yield from after_tokens(self._scan, k, begun)
            if after >= 0:
                break
        if after < 0:
            raise NotACallError
        is_weak = begun != self.begin
        match self._form.form:
            case "object":
                yield from self._object(after)
            case "named":
                yield from self._named(after)
            case "tagged" | "nested" | "harmony":
                yield from self._tagged(after, is_weak=is_weak)
            case "python":
                yield from self._python(after)
            case "gemma":
                yield from self._gemma(after)
        self._scan.take((yield from after_present(self._scan, 0, self._loose_end)))

    # JSON objects

    def _object(self, k: int) -> Steps[None]:
        """Read a JSON object with the name and the arguments as members."""
        k = yield from after_space(self._scan, k)
        if (yield from char_at(self._scan, k)) != "{":
            raise NotACallError
        yield from self._members(k + 1)

    def _members(self, k: int) -> Steps[None]:
        name: str | None = None
        held: str | None = None
        while True:
            key, k = yield from self._key(k)
            if key is None:
                break
            is_name = key == self._form.name_key or (key == "name" and self._form.name_key != "")
            if not self._form.name_key and name is None:
                name, is_name = key, False
            elif not is_name and key != self._form.arguments_key and key not in _ARGUMENT_KEYS:
                k = yield from after_value(self._scan, k)
                continue
            if is_name:
                end = yield from after_value(self._scan, k)
                value = loaded(self._scan.ahead(k, end))
                if not isinstance(value, str):
                    raise NotACallError
                if self._is_bare and value not in self._deltas.tools:
                    raise NotACallError
                name, k = value, end
                continue
            if name is not None and (yield from char_at(self._scan, k)) == "{":
                self._scan.take(k)
                self._deltas.begin(name)
                yield from self.json()
                self._deltas.end()
                yield from self._rest_of_object()
                return
            end = yield from after_value(self._scan, k)
            held, k = _object_text(self._scan.ahead(k, end)), end
        if name is None or (held is None and self._is_bare):
            raise NotACallError
        self._give(name, held or "{}", k)

    def _key(self, k: int) -> Steps[tuple[str | None, int]]:
        """Read a member's key and its colon; the key is None at the object's end."""
        while True:
            k = yield from after_space(self._scan, k)
            char = yield from char_at(self._scan, k)
            if char != ",":
                break
            k += 1
        if char == "}":
            return None, k + 1
        if char != '"':
            raise NotACallError
        end = yield from after_string(self._scan, k)
        key = loaded(self._scan.ahead(k, end))
        end = yield from after_space(self._scan, end)
        if not isinstance(key, str) or (yield from char_at(self._scan, end)) != ":":
            raise NotACallError
        return key, (yield from after_space(self._scan, end + 1))

    def _rest_of_object(self) -> Steps[None]:
        """Skip the members after the arguments, and the object's end."""
        k = 0
        try:
            while True:
                key, k = yield from self._key(k)
                if key is None:
                    self._scan.take(k)
                    return
                k = yield from after_value(self._scan, k)
        except NotACallError:
            return

    def json(self) -> Steps[None]:
        """Give out the JSON object that begins here, exactly to its end."""
        scan, open_brackets, is_text = self._scan, "", False
        while True:
            text, k = scan.text, scan.at
            while match := (_IN_STRING if is_text else _IN_JSON).search(text, k):
                k = match.end()
                if match[0] == "\\":
                    if k == len(text):
                        k -= 1
                        break
                    k += 1
                elif match[0] == '"':
                    is_text = not is_text
                else:
                    try:
                        open_brackets = nested(open_brackets, match[0])
                    except NotACallError:
                        self._deltas.argue(scan.take(match.start() - scan.at))
                        yield from self._broken()
                        return
                    if not open_brackets:
                        self._deltas.argue(scan.take(k - scan.at))
                        return
            else:
                k = len(text)
            self._deltas.argue(scan.take(k - scan.at))
            if scan.is_final:
                self._deltas.argue(scan.take(scan.n_ahead))
                return
            yield

    def _broken(self) -> Steps[None]:
        """Give out the rest of arguments that are no JSON, up to the call's end."""
        scan, markers = self._scan, Markers(self._end[:1])
        while True:
            k, marker = markers.next(scan)
            self._deltas.argue(scan.take(k))
            if marker or scan.is_final:
                return
            yield

    # names

    def _named(self, k: int) -> Steps[None]:
        """Read a name and a JSON object."""
        name, own_id, k = yield from self._name(k)
        k = yield from after_space(self._scan, k)
        char = yield from char_at(self._scan, k)
        if char != "{":
            end = yield from after_token(self._scan, k, self._end[0]) if self._end else _nowhere()
            if end < 0 or name not in self._deltas.tools:
                raise NotACallError
        self._scan.take(k)
        self._deltas.begin(name, own_id)
        if char == "{":
            yield from self.json()
        else:
            self._deltas.argue("{}")
        self._deltas.end()

    def _name(self, k: int) -> Steps[tuple[str, str, int]]:
        """Read a name at offset k: return it, the call's own id, and the offset of the arguments."""
        form, own_id = self._form, ""
        if form.id_end:
            end = yield from self._find(form.id_end.strip(), k)
            own_id, k = self._scan.ahead(k, end).strip(), end + len(form.id_end.strip())
        if form.form == "named" and not self._name_end and (yield from char_at(self._scan, k)).isspace():
            raise NotACallError  # Functionary's marker is Python's prompt, too
        match = yield from self._find_stop(k)
        written = self._scan.ahead(k, match.start() - self._scan.at).strip()
        k = match.start() - self._scan.at
        name = written.removeprefix(form.name_prefix)
        if form.index_begin:
            before, sign, number = name.rpartition(form.index_begin)
            name = before if sign and number.isdecimal() else name
        if form.is_whole_id:
            own_id = written
        if form.id_begin and match[0] == form.id_begin:
            start = match.end() - self._scan.at
            k = yield from self._find(self._name_end[0], start)
            own_id = self._scan.ahead(start, k).strip()
        if name not in self._deltas.tools and not _NAME.fullmatch(name):
            raise NotACallError
        return name, own_id, (yield from after_present(self._scan, k, self._name_end))

    def _find_stop(self, k: int) -> Steps[re.Match[str]]:
        while True:
            if match := self._name_stop.search(self._scan.text, self._scan.at + k):
                if match.start() - self._scan.at - k > _MAX_NAME:
                    raise NotACallError
                return match
            if self._scan.is_final or self._scan.n_ahead - k > _MAX_NAME + len(self._name_stop.pattern):
                raise NotACallError
            yield

    def _find(self, token: str, k: int) -> Steps[int]:
        while True:
            end = self._scan.find(token, k)
            if 0 <= end - k <= _MAX_NAME:
                return end
            if self._scan.is_final or end >= 0 or self._scan.n_ahead - k > _MAX_NAME + len(token):
                raise NotACallError
            yield

    # arguments between markers

    def _tagged(self, k: int, *, is_weak: bool) -> Steps[None]:
        """Read a name and arguments between markers. A weak beginning needs an offered name."""
        name, own_id, k = yield from self._name(k)
        if is_weak and name not in self._deltas.tools:
            raise NotACallError
        self._scan.take(k)
        self._deltas.begin(name, own_id)
        self._deltas.argue("{")
        schema = self._deltas.tools.get(name)
        n_given = 0
        while (key := (yield from self._next_parameter())) is not None:
            self._deltas.argue(f"{', ' if n_given else ''}{quoted(key)}: ")
            if self._form.form == "nested":
                yield from self._element(key, member(schema, schema, key), schema)
            else:
                yield from self._value(member(schema, schema, key), schema)
            n_given += 1
        self._deltas.argue("}")
        self._deltas.end()

    def _next_parameter(self) -> Steps[str | None]:
        """Read the next argument's name; None if there is no more."""
        scan = self._scan
        while True:
            k = yield from after_tokens(scan, 0, self._parameter_begin)
            if k >= 0:
                break
            k = yield from after_space(scan, 0)
            k = yield from after_token(scan, k, self._parameter_end) if self._form.form != "nested" else _nowhere()
            if k < 0:
                return None
            scan.take(k)  # models write the end of a parameter twice
        stop = self._form.parameter_name_end.strip()
        first = tokens_of(stop)[0]
        try:
            end = yield from self._find(first, k)
        except NotACallError:
            return None
        key = scan.ahead(k, end).strip()
        if not key or "<" in key or "\n" in key or (self._form.form == "nested" and key.startswith("/")):
            return None
        scan.take((yield from after_present(scan, end, tokens_of(stop))))
        return key

    def _value(self, schema: object, root: object) -> Steps[None]:
        """Give out the value that begins here, up to its true end."""
        types = types_of(schema, root)
        if self._form.values != "schema":
            types = yield from self._marked_types(types)
        if self._form.parameter_name_end.endswith("\n") or self._form.mark_end.endswith("\n"):
            self._scan.take(max(0, (yield from after_token(self._scan, 0, "\n"))))
        opening = yield from after_token(self._scan, 0, "<![CDATA[")
        if opening >= 0 and self._form.parameter_begin.startswith("<param name"):
            self._scan.take(opening)
            yield from self._text(types, f"]]>{self._parameter_end}", is_plain=True)
            return
        yield from self._text(types, self._parameter_end)

    def _marked_types(self, types: frozenset[str]) -> Steps[frozenset[str]]:
        """Read the attribute of a value: return the types that it allows."""
        stop = self._form.mark_end.strip()
        try:
            end = yield from self._find(stop, 0)
        except NotACallError:
            return types
        mark = self._scan.take(end).strip()
        self._scan.take(len(stop))
        if mark == ("true" if self._form.values == "is_string" else "string"):
            return STRING
        return types - STRING if types - STRING else frozenset({"object", "array", "number", "boolean", "null"})

    def _text(self, types: frozenset[str], stop: str, *, is_plain: bool = False) -> Steps[None]:
        """Give out a value that ends at the marker `stop`; `is_plain` says that the first one is its end."""
        scan, k, is_open = self._scan, 0, False
        trims = self._trims_line and not is_plain
        stops = Markers(("\n" + stop, stop) if trims else (stop,))
        while True:
            end = scan.find(stop, k)
            if end >= 0 and (is_plain or (yield from self._is_end(end + len(stop)))):
                break
            if end < 0 and scan.is_final:
                end = scan.n_ahead
                break
            if end >= 0:
                k = end + 1
                continue
            safe = stops.n_safe(scan)
            if is_open or not may_be_json(scan.ahead(0, min(safe, _MAX_GLANCE)), types):
                if safe > 0:
                    self._deltas.argue(escaped(scan.take(safe)) if is_open else quoted(scan.take(safe))[:-1])
                    is_open = True
                k = 0
            else:
                k = max(0, scan.n_ahead - len(stop) + 1)
            yield
        text = scan.take(end)
        scan.take(len(stop))
        text = text.removesuffix("\n") if trims else text
        self._deltas.argue(escaped(text) + '"' if is_open else _json_of(text, types))

    def _is_end(self, k: int) -> Steps[bool]:
        """Return True if the end marker before offset k is a value's true end. Then another argument or the call's end
        follows. The marker may be there twice."""
        scan = self._scan
        while True:
            k = yield from after_space(scan, k)
            if scan.is_final and k >= scan.n_ahead:
                return True
            for token in (*self._parameter_begin[:1], *self._end[:1]):
                if (yield from after_token(scan, k, token)) >= 0:
                    return True
            again = yield from after_token(scan, k, self._parameter_end)
            if again < 0:
                return False
            k = again

    # MiniMax M3: elements in elements

    def _element(self, key: str, schema: object, root: object, depth: int = 0) -> Steps[None]:
        """Give out the value of an element, up to its end."""
        mark = self._form.parameter_begin
        stop = f"{self._form.parameter_end}{key}{self._form.parameter_name_end}"
        types = types_of(schema, root)
        opening = yield from after_token(self._scan, 0, mark)
        closing = yield from after_token(self._scan, 0, self._form.parameter_end)
        empty = "" if "string" in types else "{}" if "object" in types else "[]" if "array" in types else ""
        if empty and closing >= 0 and (end := (yield from after_token(self._scan, 0, stop))) >= 0:
            self._scan.take(end)
            self._deltas.argue(empty)
            return
        if types != STRING and (k := (yield from self._json_end())) >= 0:
            end = yield from after_token(self._scan, k, stop)
            if end >= 0:
                self._deltas.argue(json_of(self._scan.take(k), types))
                self._scan.take(end - k)
                return
        if types == STRING or opening < 0 or closing >= 0 or depth > MAX_ELEMENTS:
            yield from self._text(types, stop, is_plain=True)
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
        if not n_given:
            self._deltas.argue("null")
        else:
            self._deltas.argue("]" if is_list else "}")
        self._scan.take((yield from after_present(self._scan, 0, (stop,))))

    def _json_end(self) -> Steps[int]:
        """Return the offset after the JSON text that begins here, or -1. A text in it may have any marker."""
        if (yield from char_at(self._scan, 0)) not in {'"', "{", "["}:
            return -1
        try:
            return (yield from after_value(self._scan, 0))
        except NotACallError:
            return -1

    # Python's and Gemma's notation

    def _python(self, k: int) -> Steps[None]:
        """Read NAME(KEYWORD=VALUE, ...). It is given out as a whole."""
        name, _, k = yield from self._name(k)
        k = (yield from after_space(self._scan, k)) + 1
        members: list[str] = []
        while (char := (yield from char_at(self._scan, k := (yield from gap(self._scan, k))))) != ")":
            if char == "," and members:
                k += 1
                continue
            end = yield from self._find("=", k)
            key = self._scan.ahead(k, end).strip()
            if not _WORD.fullmatch(key):
                raise NotACallError
            value, k = yield from literal(self._scan, end + 1, "python", is_argument=True)
            members.append(f"{quoted(key)}: {value}")
        self._give(name, "{" + ", ".join(members) + "}", k + 1)

    def _gemma(self, k: int) -> Steps[None]:
        """Read NAME{KEY:VALUE,...}. It is given out as a whole."""
        name, _, k = yield from self._name(k)
        arguments, k = yield from mapping(self._scan, k, "gemma")
        self._give(name, arguments, k)

    def _give(self, name: str, arguments: str, k: int) -> None:
        """Give out a whole call, which ends at offset k."""
        self._scan.take(k)
        self._deltas.begin(name)
        self._deltas.argue(arguments)
        self._deltas.end()


def _object_text(text: str) -> str:
    """Return the arguments of a member that stands before the name, or is a string that contains JSON."""
    value = loaded(text)
    if isinstance(value, str):
        text, value = value, loaded(value)
    if value is None:
        return "{}"
    if not isinstance(value, dict) or not is_value(value):
        raise NotACallError
    return text


def _nowhere() -> Steps[int]:
    return -1
    yield


def _json_of(text: str, types: frozenset[str]) -> str:
    """Return the JSON text of a value. Templates without tojson write objects in Python's notation, and so may their
    models."""
    written = text.strip()
    if written[:1] in ("{", "[") and "string" not in types and not is_value(loaded(written)):
        text = python_json(written) or text
    return json_of(text, types)
