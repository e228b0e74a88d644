"""One call in the model's own notation becomes deltas, in each form of wire/chat_format.py.

A call is read up to its name before anything is given out; a text that is no call until there raises NotACallError, and
nothing is consumed.
"""

import re
from contextlib import suppress
from typing import Final

from worker.formats.read.deltas import Deltas
from worker.formats.read.literals import gap, literal, mapping
from worker.formats.read.scan import Brackets, MarkerSearch, NotACallError, Scan, Steps, tokens_of
from worker.formats.read.values import is_value, loaded, quoted, unescaped
from worker.wire.chat_format import CallFormat

_NAME: Final = re.compile(r"(?=.*\w)[\w.:/@$-]+")
_MAX_NAME: Final = 256
_WORD: Final = re.compile(r"[\w.:/-]*")
_ARGUMENTS_BEGIN: Final = {"python": "(", "gemma": "{"}
_ARGUMENT_KEYS: Final = ("arguments", "parameters")


class CallReader:
    """Reads the calls of one answer, each from the scan's text into deltas."""

    def __init__(self, form: CallFormat, scan: Scan, deltas: Deltas) -> None:
        self.form = form
        self._scan = scan
        self._deltas = deltas
        self.begin = tokens_of(form.call_begin)
        self.begins = (self.begin, *(tokens_of(form.call_begin.removeprefix(one)) for one in form.skippable))
        """The markers that begin a call, the whole one first."""
        self.end = tokens_of(form.call_end)
        self.section, self.section_end = tokens_of(form.section_begin), tokens_of(form.section_end)
        self._loose_end = ("}", *self.end) if form.form == "object" else self.end
        """The end as models write it: small ones close an object once too often."""
        self.is_bare = not self.begin and not form.section_begin
        """True if nothing but an offered name shows that an object is a call."""
        self._parameter_begin = tokens_of(form.parameter_begin)
        self._name_end = tokens_of(form.name_end)
        self._name_stops = self._stops_of_names()

    def _stops_of_names(self) -> tuple[str, ...]:
        form, more = self.form, self.end[:1]
        if form.form in _ARGUMENTS_BEGIN:
            return (_ARGUMENTS_BEGIN[form.form],)
        if form.form in ("tagged", "nested"):
            more = self._parameter_begin[:1] + more
        elif not self._name_end:
            more = ("{",)
        return tuple(filter(None, (form.id_begin, *self._name_end[:1], *more)))

    def read(self, k: int) -> Steps[None]:
        """Read the call whose beginning is at offset k."""
        _, after = yield from self._begun(k)
        forms = {"object": self._object, "named": self._named, "python": self._python, "gemma": self._gemma}
        if self.form.form in forms:
            yield from forms[self.form.form](after)
        yield from self._finish()

    def _begun(self, k: int) -> Steps[tuple[tuple[str, ...], int]]:
        """Return the markers at offset k that begin a call, and the offset after them."""
        for begun in self.begins:
            after = yield from self._scan.after_tokens(k, begun)
            if after >= 0:
                return begun, after
        raise NotACallError

    def is_closed_by(self, rest: str) -> bool:  # noqa: ARG002 - tagged.py's alone
        """Return True if the rest of an answer shows where the call ends that has begun."""
        return False

    def _finish(self) -> Steps[None]:
        self._scan.take((yield from self._scan.after_present(0, self._loose_end)))

    def _object(self, k: int) -> Steps[None]:
        scan, form = self._scan, self.form
        k = yield from scan.after_space(k)
        if (yield from scan.char_at(k)) != "{":
            raise NotACallError
        name: str | None = None
        held: str | None = None
        key, k = yield from self._key(k + 1)
        while key is not None:
            is_name = key == form.name_key or (key == "name" and form.name_key != "")
            if not form.name_key and name is None:
                name, is_name, key = key, False, form.arguments_key
            is_arguments = not is_name and (key == form.arguments_key or key in _ARGUMENT_KEYS)
            if is_arguments and name is not None and (yield from scan.char_at(k)) == "{":
                scan.take(k)
                self._deltas.begin(name)
                yield from self.json()
                self._deltas.end()
                yield from self._rest_of_object()
                return
            end = yield from scan.after_value(k)
            if is_name:
                value = loaded(scan.ahead(k, end))
                if not isinstance(value, str) or (self.is_bare and value not in self._deltas.tools):
                    raise NotACallError
                name = value
            elif is_arguments:
                held = _object_text(scan.ahead(k, end))
            key, k = yield from self._key(end)
        if name is None or (held is None and self.is_bare):
            raise NotACallError
        self._give(name, held or "{}", k)

    def _key(self, k: int) -> Steps[tuple[str | None, int]]:
        """Read a member's key and its colon; the key is None at the object's end."""
        while True:
            k = yield from self._scan.after_space(k)
            char = yield from self._scan.char_at(k)
            if char != ",":
                break
            k += 1
        if char == "}":
            return None, k + 1
        if char != '"':
            raise NotACallError
        end = yield from self._scan.after_string(k)
        key = loaded(self._scan.ahead(k, end))
        end = yield from self._scan.after_space(end)
        if not isinstance(key, str) or (yield from self._scan.char_at(end)) != ":":
            raise NotACallError
        return key, (yield from self._scan.after_space(end + 1))

    def _rest_of_object(self) -> Steps[None]:
        """Skip the members after the arguments, and the object's end."""
        with suppress(NotACallError):
            key, k = yield from self._key(0)
            while key is not None:
                key, k = yield from self._key((yield from self._scan.after_value(k)))
            self._scan.take(k)

    def json(self) -> Steps[None]:
        """Give out the JSON object that begins here, exactly to its end."""
        scan, brackets, is_broken = self._scan, Brackets(), False
        try:
            while not brackets.is_closed_in(scan.text, scan.at):
                self._deltas.argue(scan.take(scan.n_ahead if scan.is_final else brackets.at - scan.at))
                if scan.is_final:
                    return
                yield
        except NotACallError:
            is_broken = True
        self._deltas.argue(scan.take(brackets.at - scan.at))
        if is_broken:
            # The rest of arguments that are no JSON, up to the call's end.
            yield from MarkerSearch(self.end[:1]).up_to(scan, self._deltas.argue)

    def _named(self, k: int) -> Steps[None]:
        name, own_id, k = yield from self._name(k)
        k = yield from self._scan.after_space(k)
        has_arguments = (yield from self._scan.char_at(k)) == "{"
        if not has_arguments:
            end = (yield from self._scan.after_token(k, self.end[0])) if self.end else -1
            if end < 0 or name not in self._deltas.tools:
                raise NotACallError
        self._scan.take(k)
        self._deltas.begin(name, own_id)
        if has_arguments:
            yield from self.json()
        else:
            self._deltas.argue("{}")
        self._deltas.end()

    def _name(self, k: int) -> Steps[tuple[str, str, int]]:
        """Read a name at offset k: return it, the call's own id, and the offset of the arguments."""
        form, own_id = self.form, ""
        if form.id_end:
            end, stop = yield from self._find(k, form.id_end.strip())
            own_id, k = self._scan.ahead(k, end).strip(), end + len(stop)
        if form.form == "named" and not self._name_end and (yield from self._scan.char_at(k)).isspace():
            raise NotACallError  # Functionary's marker is Python's prompt, too
        start, (k, stop) = k, (yield from self._find(k, *self._name_stops))
        written = word(self._scan.ahead(start, k), form.call_begin)
        name = written.removeprefix(form.name_prefix)
        if form.index_begin:
            before, sign, number = name.rpartition(form.index_begin)
            name = before if sign and number.isdecimal() else name
        if form.is_whole_id:
            own_id = written
        if form.id_begin and stop == form.id_begin:
            start = k + len(stop)
            k, _ = yield from self._find(start, self._name_end[0])
            own_id = self._scan.ahead(start, k).strip()
        if name not in self._deltas.tools and not _NAME.fullmatch(name):
            raise NotACallError
        return name, own_id, (yield from self._scan.after_present(k, self._name_end))

    def _find(self, k: int, *tokens: str) -> Steps[tuple[int, str]]:
        """Return the offset of the first of the tokens behind a name at offset k, and the token."""
        markers, end = MarkerSearch(tokens), k
        while True:
            end, token = markers.next(self._scan, end)
            if end - k > _MAX_NAME or (not token and self._scan.is_final):
                raise NotACallError
            if token:
                return end, token
            yield

    def _python(self, k: int) -> Steps[None]:
        """Read NAME(KEYWORD=VALUE, ...). It is given out as a whole."""
        name, _, k = yield from self._name(k)
        k = (yield from self._scan.after_space(k)) + 1
        members: list[str] = []
        while (char := (yield from self._scan.char_at(k := (yield from gap(self._scan, k))))) != ")":
            if char == "," and members:
                k += 1
                continue
            end, _ = yield from self._find(k, "=")
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


def word(text: str, begin: str) -> str:
    """Return the name that stands behind a marker. In quotes it is an attribute, whose signs may be escaped."""
    return unescaped(text.strip()) if begin.endswith('"') else text.strip()
