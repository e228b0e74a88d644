"""A JSON text without its payloads says the same, whatever the pieces in which it arrives."""

import json
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.tables import cases
from worker.apis.chat.request import PAYLOADS as CHAT
from worker.apis.core.payloads import MAX_TOKENS, MIN_PAYLOAD_BYTES, MediaPlaces, Payloads
from worker.apis.messages.request import BLOCK_PAYLOADS as MESSAGES
from worker.apis.responses.items import PAYLOADS as RESPONSES

NO_LIMIT = 2**40
LONG = 5000
"""The least characters of a long string; a short one has fewer bytes than MIN_PAYLOAD_BYTES in every spelling."""

Pairs = list[tuple[str, Any]]
"""An object, whose names may come twice."""


def left(text: bytes, places: MediaPlaces, cuts: list[int], max_bytes: int = NO_LIMIT) -> tuple[bytes, bool]:
    """Return the kept part of a text that comes in pieces, and whether it is too long."""
    payloads = Payloads(places, max_bytes)
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for begin, end in pairwise(edges):
        for _ in payloads.feed(text[begin:end]):
            pass
    payloads.finish()
    return bytes(payloads.kept), payloads.is_too_long


# ── texts ────────────────────────────────────────────────────────────────────────────────────────

NAMES = st.sampled_from(
    ["messages", "content", "source", "data", "type", "input", "output", "image_url", "url", "file_data", "text", "a.b"]
)
ENDINGS = ("", "中", '"', "\\", "\n", "中 and more", '\\"}]', '","type":"text')
strings = st.one_of(
    st.sampled_from(["", "text", "base64", "input_image", "image_url", '"data":"', "[{", "\\", "中"]),
    st.builds(
        lambda unit, end: (unit * LONG)[:LONG] + end, st.sampled_from(["A", "x/+=", "a b"]), st.sampled_from(ENDINGS)
    ),
)


def objects(members: st.SearchStrategy[Any]) -> st.SearchStrategy[Pairs]:
    return st.lists(st.tuples(NAMES, members), max_size=4)


anything = st.recursive(
    st.one_of(strings, st.none(), st.integers(-9, 9)),
    lambda inner: st.one_of(st.lists(inner, max_size=3).map(tuple), objects(inner)),
    max_leaves=6,
)
sources = st.lists(
    st.one_of(
        st.tuples(st.just("data"), strings),
        st.tuples(st.just("type"), st.one_of(st.sampled_from(["text", "base64", "input_image"]), anything)),
        st.tuples(NAMES, anything),
    ),
    max_size=4,
)


def blocks(member: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    block = st.lists(st.one_of(st.tuples(st.just("source"), sources), st.tuples(NAMES, member)), max_size=3)
    return st.lists(st.one_of(block, anything), max_size=3).map(tuple)


def requests(field: str, content: str) -> st.SearchStrategy[Pairs]:
    inner = blocks(anything)
    outer = blocks(st.one_of(inner, anything))
    message = st.lists(st.one_of(st.tuples(st.just(content), outer), st.tuples(NAMES, anything)), max_size=2)
    turns = st.lists(st.one_of(message, anything), max_size=3).map(tuple)
    return st.lists(st.one_of(st.tuples(st.just(field), turns), st.tuples(NAMES, anything)), max_size=3)


asked = st.one_of(
    st.tuples(st.just(MESSAGES), requests("messages", "content")),
    st.tuples(st.just(CHAT), requests("messages", "content")),
    st.tuples(st.just(RESPONSES), requests("input", "output")),
)


def plain(text: str) -> str:
    return json.dumps(text)


def in_utf8(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("/", "\\/")


def in_escapes(text: str) -> str:
    return '"' + "".join(f"\\u{ord(char):04x}" for char in text) + '"'


def spelled(value: Any, string: Callable[[str], str], name: Callable[[str], str], space: str = "") -> str:
    """JSON, in which lists of pairs are objects."""
    match value:
        case list():
            members = (f"{name(key)}{space}:{space}{spelled(inner, string, name, space)}" for key, inner in value)
            return "{" + f"{space},{space}".join(members) + space + "}"
        case tuple():
            return "[" + f"{space},".join(spelled(inner, string, name, space) for inner in value) + "]"
        case str():
            return string(value)
        case _:
            return json.dumps(value)


# ── what is left ─────────────────────────────────────────────────────────────────────────────────


def differences(whole: Any, kept: Any, path: str = "") -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield each string that is another one: its path, the `type` beside it, and both."""
    if type(whole) is not type(kept):
        yield path, None, whole, kept
    elif isinstance(whole, dict):
        assert list(whole) == list(kept)
        for name, inner in whole.items():
            member = f"{path}.{name}"
            if isinstance(inner, str):
                if inner != kept[name]:
                    yield member, whole.get("type", ""), inner, kept[name]
            else:
                yield from differences(inner, kept[name], member)
    elif isinstance(whole, list):
        assert len(whole) == len(kept)
        for one, other in zip(whole, kept, strict=True):
            yield from differences(one, other, f"{path}[]")
    elif whole != kept:
        yield path, None, whole, kept


def payloads_in(whole: Any, places: MediaPlaces, path: str = "") -> Iterator[str]:
    """Yield the payloads of a value."""
    match whole:
        case dict():
            for name, inner in whole.items():
                member = f"{path}.{name}"
                if (
                    isinstance(inner, str)
                    and member in places.paths
                    and whole.get("type", "") in list(places.kinds)
                    and len(inner) >= LONG
                ):
                    yield inner
                yield from payloads_in(inner, places, member)
        case list():
            for inner in whole:
                yield from payloads_in(inner, places, f"{path}[]")


@given(
    asked, st.lists(st.integers(0, 2**31), max_size=30), st.sampled_from([plain, in_utf8]), st.sampled_from(["", " \n"])
)
def test_only_payloads_differ_and_all_of_them(
    request: tuple[MediaPlaces, Pairs], cuts: list[int], string: Callable[[str], str], space: str
) -> None:
    places, body = request
    text = spelled(body, string, plain, space).encode()
    kept, is_too_long = left(text, places, cuts)
    assert not is_too_long
    whole = json.loads(text)
    found = list(differences(whole, json.loads(kept)))
    for path, kind, before, after in found:
        assert path in places.paths
        assert kind in places.kinds
        assert before.endswith(after)
        assert after == "" or after[0] == "中"
    assert sorted(before for _, _, before, _ in found) == sorted(payloads_in(whole, places))


@given(asked, st.lists(st.integers(0, 2**31), max_size=30), st.integers(0, 40_000))
def test_any_pieces_give_the_same_bytes(request: tuple[MediaPlaces, Pairs], cuts: list[int], max_bytes: int) -> None:
    places, body = request
    text = spelled(body, plain, plain).encode()
    kept, is_too_long = left(text, places, cuts, max_bytes)
    assert is_too_long == left(text, places, [], max_bytes)[1]
    if not is_too_long:
        assert len(kept) <= max_bytes
        assert kept == left(text, places, list(range(0, len(text), 7)))[0]


@given(asked, st.integers(0, 40_000))
def test_a_text_is_too_long_if_what_is_left_is(request: tuple[MediaPlaces, Pairs], max_bytes: int) -> None:
    places, body = request
    text = spelled(body, plain, plain).encode()
    is_too_long = left(text, places, [], max_bytes)[1]
    n_bytes = len(left(text, places, [])[0])
    if places is MESSAGES:
        assert is_too_long == (n_bytes > max_bytes)
    assert is_too_long or n_bytes <= max_bytes


@given(asked, st.sampled_from([plain, in_escapes]), st.sampled_from([plain, in_escapes]))
def test_escapes_hide_no_text_from_the_reader(
    request: tuple[MediaPlaces, Pairs], string: Callable[[str], str], name: Callable[[str], str]
) -> None:
    places, body = request
    text = spelled(body, string, name).encode()
    for path, kind, _, _ in differences(json.loads(text), json.loads(left(text, places, [])[0])):
        assert path in places.paths
        assert kind in places.kinds


def is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


SOURCE = b'{"messages":[{"content":[{"source":{"type":"base64","data":"%b"}}]}]}'


@given(
    asked,
    st.lists(
        st.tuples(st.integers(0, 2**31), st.sampled_from([b'"', b"\\", b"\n", b"\xff", b"\xc3", b"}", b":", b""])),
        max_size=4,
    ),
    st.integers(0, 2**31) | st.none(),
)
def test_what_is_no_json_stays_so(
    request: tuple[MediaPlaces, Pairs], edits: list[tuple[int, bytes]], end: int | None
) -> None:
    places, body = request
    text = bytearray(spelled(body, plain, plain).encode())
    for at, put in edits:
        where = at % (len(text) + 1)
        text[where : where + 1] = put
    if end is not None:
        del text[end % (len(text) + 1) :]
    assert is_json(left(bytes(text), places, [])[0]) == is_json(bytes(text))


@pytest.mark.parametrize(
    "wrong", [b"\x00", b"\x7f", b"\xff", b"\xc3(", b"\\x", b"\\u00g0", b"\\ud800", b"\\", b"\n", b'"']
)
@pytest.mark.parametrize("at", [0, 1, LONG, 2 * LONG])
def test_a_fault_inside_a_payload_is_found(wrong: bytes, at: int) -> None:
    data = b"A" * at + wrong + b"A" * (2 * LONG - at)
    text = SOURCE % data
    kept, _ = left(text, MESSAGES, list(range(0, len(text), 11)))
    assert is_json(kept) == is_json(text)


@cases
def test_the_type_beside_it_says_whether_a_string_is_a_payload(members: str, *, is_removed: bool) -> None:
    """Clients may sort the names of an object, so that the type comes last. Of two the last one counts."""
    data = "A" * LONG
    text = f'{{"messages":[{{"content":[{{"source":{{{members.format(data)}}}}}]}}]}}'.encode()
    assert (data.encode() not in left(text, MESSAGES, [])[0]) == is_removed


@pytest.mark.parametrize("n_bytes", [MIN_PAYLOAD_BYTES - 1, MIN_PAYLOAD_BYTES])
def test_a_short_string_stays(n_bytes: int) -> None:
    text = SOURCE % (b"A" * n_bytes)
    assert left(text, MESSAGES, [])[0] == (text if n_bytes < MIN_PAYLOAD_BYTES else SOURCE % b"")


@pytest.mark.parametrize("n_bytes", [900, 1_000_000])
def test_a_long_text_is_not_taken_for_a_payload_when_there_is_no_room(n_bytes: int) -> None:
    """Its type comes last: what was kept of it is counted, and what was not kept is not forgotten."""
    text = b'{"messages":[{"content":[{"source":{"data":"%b","type":"text"}}]}]}' % (b"A" * n_bytes)
    kept, is_too_long = left(text, MESSAGES, [], 1000)
    assert is_too_long == (n_bytes > 900)
    assert is_too_long or kept == text


def test_pictures_take_only_the_room_that_there_is() -> None:
    """However much comes, no more than the limit is held, and a step."""
    payloads = Payloads(MESSAGES, 20_000)
    for piece in (SOURCE % (b"A" * 10_000_000)).split(b"%"):
        for _ in payloads.feed(piece):
            assert len(payloads.kept) <= 20_000
    payloads.finish()
    assert payloads.kept == SOURCE % b""
    assert not payloads.is_too_long


@example(b"[" * MAX_TOKENS + b"[")
@example(b'{"messages":[{"content":[' + b"{}," * MAX_TOKENS)
@example(b'{"a":1,' * MAX_TOKENS)
@given(st.sampled_from([b"{", b"]" * (MAX_TOKENS + 1)]))
def test_a_text_of_very_many_brackets_is_too_long(text: bytes) -> None:
    assert left(text, MESSAGES, [])[1] == (len(text) > 1)


# ── the places ───────────────────────────────────────────────────────────────────────────────────


def nested(path: str, kind: str) -> tuple[str, str]:
    """Return the text before and behind the value at a path, in an object of that kind."""
    before, behind = "", ""
    *steps, name = path.removeprefix(".").replace("[]", ".[]").split(".")
    for step in steps:
        before, behind = (before + "[", "]" + behind) if step == "[]" else (f'{before}{{"{step}":', "}" + behind)
    return f'{before}{{"{name}":', f',"type":"{kind}"}}{behind}' if kind else "}" + behind


@pytest.mark.parametrize("places", [MESSAGES, CHAT, RESPONSES])
def test_each_place_is_found_in_objects_of_each_kind(places: MediaPlaces) -> None:
    for path, kind in product(places.paths, places.kinds):
        before, behind = nested(path, kind)
        kept, _ = left(f'{before}"{"A" * LONG}"{behind}'.encode(), places, [])
        assert kept.decode() == f'{before}""{behind}', path


@pytest.mark.parametrize("places", [MESSAGES, CHAT, RESPONSES])
def test_nothing_is_removed_from_objects_of_other_kinds(places: MediaPlaces) -> None:
    """Items of hosted services have members of many names, and the model reads some of them."""
    for path, kind in product(places.paths, ["text", "input_text", "shell_call", "code_interpreter_call_output"]):
        before, behind = nested(path, kind)
        text = f'{before}"{"A" * LONG}"{behind}'.encode()
        assert left(text, places, [])[0] == text
