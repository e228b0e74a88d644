"""Values in Python's notation become the same values in JSON."""

import ast
import json
import warnings
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.formats.writing import FORMATS, pieces_of
from tests.tables import cases
from worker.formats.read.literals import python_json
from worker.formats.read.parse import Reader, message_of
from worker.wire.chat_format import CallFormat, ChatFormat

TEXTS = st.text("ab \\\n\té'\"{}[],:<>", max_size=8)
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-(10**6), 10**6), TEXTS)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))
CONTAINERS = st.lists(VALUES, max_size=3) | st.dictionaries(TEXTS, VALUES, max_size=3)
TAGGED = ChatFormat(
    calls=CallFormat(
        form="tagged",
        call_begin="<call=",
        call_end="</call>",
        name_end=">",
        parameter_begin="<p=",
        parameter_name_end=">",
        parameter_end="</p>",
    )
)


@settings(max_examples=300)
@given(CONTAINERS)
def test_what_python_writes_is_read(value: object) -> None:
    found = python_json(repr(value))
    assert found is not None
    assert json.loads(found) == value


@pytest.mark.parametrize("text", ["", "{", "{'a'}", "{'a': }", "[1, 2", "[1] x", "{a: 1}", "__import__('os')", "[x]"])
def test_a_text_that_is_no_value_is_none(text: str) -> None:
    assert python_json(text) is None


@cases
def test_an_argument_may_be_in_pythons_notation_unless_it_may_be_a_text(
    schema: object, text: str, value: object
) -> None:
    """Templates without tojson write it."""
    reader = Reader(TAGGED, {"f": {"properties": {"x": schema}}}, new_id=str)
    message = message_of([*reader.push(f"<call=f><p=x>{text}</p></call>"), *reader.finish()])
    assert json.loads(message.calls[0].arguments) == {"x": value}


PREFIXES = st.sampled_from(["", "r", "R", "u", "U", "b", "rb", "Br"])
QUOTES = st.sampled_from(["'", '"', "'''", '"""'])
ESCAPES = [
    "\\n",
    "\\'",
    '\\"',
    "\\\\",
    "\\x41",
    "\\u00e9",
    "\\U0001f642",
    "\\N{DIGIT ONE}",
    "\\101",
    "\\\n",
    "\\/",
    "\\d",
]
SURROGATES = ["\\ud83d\\ude42", "\\ud800"]
INSIDE = st.lists(st.sampled_from([*"ab1 é,)(]}{[=:#\n'\"", *ESCAPES, *SURROGATES, "f(a=1)", ", b=2"]), max_size=5).map(
    "".join
)
STRING = st.builds(lambda prefix, quote, inside: f"{prefix}{quote}{inside}{quote}", PREFIXES, QUOTES, INSIDE)
NUMBER = st.one_of(
    st.integers(-(10**30), 10**30).map(str),
    st.floats().map(repr),
    st.sampled_from(
        ["+1", "- 1", "1_000", "0x1F", "-0XfF", "0o17", "0b1_0", ".5", "-.5", "5.", "1e5", "1E-3", "1_0.0_1"]
    ),
    st.sampled_from(["007", "1__0", "--1", "1j", "1+2j", "0x", "1e999", "+ -1", "00", "1.e+2", "True", "-True"]),
)
GAP = st.sampled_from(["", "", "", " ", "\n", "\t", " # it's (a\n", "\\\n", "\r\n", "\f"])
ATOM = st.one_of(
    st.lists(st.tuples(STRING, GAP), min_size=1, max_size=3).map(lambda parts: "".join(a + b for a, b in parts)),
    STRING,
    NUMBER,
    st.sampled_from(["True", "False", "None", "true", "nan", "x", "...", "set()", "{1}"]),
)


def listed(parts: Sequence[tuple[str, str]], comma: str) -> str:
    return ",".join(gap + part + gap for part, gap in parts) + (comma if parts else "")


def pair(key: st.SearchStrategy[str], value: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[str, str]]:
    return st.builds(lambda key, gap, value: (f"{key}{gap}:{gap}{value}", gap), key, GAP, value)


def containers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    parts = st.lists(st.tuples(inner, GAP), max_size=3)
    # No two keys may be equal. Python takes 1, 1.0 and True for one.
    keyed = [pair(STRING.map(f"'{n}'".__add__), inner) for n in range(3)]
    pairs = st.one_of(st.tuples(*keyed), st.lists(pair(inner, inner), max_size=1))
    comma = st.sampled_from(["", "", ",", " , "])
    return st.one_of(
        st.builds(lambda parts, comma: f"[{listed(parts, comma)}]", parts, comma),
        st.builds(lambda parts, comma: f"({listed(parts, comma)})", parts, comma),
        st.builds(lambda parts, comma: f"{{{listed(parts, comma)}}}", pairs, comma),
    )


SOURCE = st.recursive(ATOM, containers, max_leaves=6)


def evaluated(source: str) -> object:
    """The value that Python reads, as JSON has it; NO_VALUE if there is none."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return in_json(ast.literal_eval(f"({source}\n)"))
    except (ValueError, SyntaxError, TypeError):
        return NO_VALUE


NO_VALUE = object()


def in_json(value: object) -> object:
    """Raises: TypeError, ValueError if JSON has no such value."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str | int | float | None):
                raise TypeError(key)
    if isinstance(value, dict | list | tuple | str | int | float | None):
        plain: object = json.loads(json.dumps(value, allow_nan=False))
        return plain
    raise TypeError(value)


def called(pieces: Sequence[str]) -> object:
    """The arguments of a call in LFM2's form; None if there is no call."""
    reader = Reader(FORMATS["lfm2"], {"f": {}}, new_id=str)
    message = message_of([*(delta for piece in pieces for delta in reader.push(piece)), *reader.finish()])
    assert len(message.calls) < 2
    return json.loads(message.calls[0].arguments) if message.calls else None


@settings(max_examples=400, deadline=None)
@given(SOURCE, GAP, st.sampled_from(["", ", b=1", ",", ",\n b = 'x' "]), st.data())
def test_an_argument_has_the_value_that_python_gives_it(source: str, gap: str, rest: str, data: st.DataObject) -> None:
    value = evaluated(source)
    more = {"b": evaluated(rest.partition("=")[2])} if "b" in rest else {}
    text = f"<|tool_call_start|>[f(a={gap}{source}{gap}{rest})]<|tool_call_end|>"
    found = called(data.draw(pieces_of(text)))
    assert found == called([text])
    if value is not NO_VALUE:
        assert found == {"a": value, **more}


@settings(max_examples=400, deadline=None)
@given(containers(SOURCE))
def test_a_container_of_a_tagged_argument_has_the_value_that_python_gives_it(source: str) -> None:
    value, found = evaluated(source), python_json(source)
    if value is not NO_VALUE:
        assert found is not None
        assert json.loads(found) == value


@cases
def test_literals_of_each_kind_are_read(source: str, value: object) -> None:
    expected = {"a": "it's", "b": "x"} if value is None else {"a": value}
    assert called([*f"<|tool_call_start|>[f(a={source})]<|tool_call_end|>"]) == expected


@pytest.mark.parametrize(
    "source", ["b'a'", "1j", "1+2j", "{1, 2}", "{(1, 2): 3}", "f'a'", "x", "-'a'", "--1", "...", "1.e400"]
)
def test_what_json_has_no_value_for_is_no_call(source: str) -> None:
    assert called([f"<|tool_call_start|>[f(a={source})]<|tool_call_end|>"]) is None
