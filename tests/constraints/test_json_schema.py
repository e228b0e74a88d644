"""Each part of JSON schema is enforced, refused, narrower or loose: one row each, judged by the package `jsonschema`.

docs/sampling.md says the same to users. No text that a schema lets through may break it, but for the rows of
test_a_text_that_comes_up_though_its_format_rules_it_out; a valid text may be out of reach only in the ways of
test_a_valid_text_that_does_not_come_up.
"""

import json
import random
import re
import time
from typing import Any

import jsonschema
import jsonschema_rs
import pytest

from tests.constraints.json_texts import Refusal, Texts, is_valid, texts, unchecked
from tests.random_schemas import random_schema
from tests.tables import cases, table
from worker.constraints.schema_gaps import gap, plain, readable

N_WALKS = 8


def enforced(schema: Any) -> Texts:
    found = texts(schema)
    assert isinstance(found, Texts), found.message
    return found


def integer(**bounds: Any) -> dict[str, Any]:
    return {"type": "integer", **bounds}


def number(**bounds: Any) -> dict[str, Any]:
    return {"type": "number", **bounds}


def string(**limits: Any) -> dict[str, Any]:
    return {"type": "string", **limits}


def record(**limits: Any) -> dict[str, Any]:
    return {"type": "object", **limits}


ENFORCED = {row["id"]: row for row in table(__file__, "ENFORCED")}
"""A schema, texts of it and texts that break it."""

FORMATS = ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
NEVER = re.compile(r"$.")
KNOWN = {
    "date": re.compile("-02-29"),
    "date-time": re.compile("-02-29|:60"),
    "time": re.compile(":60"),
    "email": re.compile(r"^.{65,}@|@(?!\[)"),
    "hostname": re.compile(r"--|^.{254,}$"),
}
"""The patterns of the texts of which test_a_text_that_comes_up_though_its_format_rules_it_out has one each."""


@pytest.mark.parametrize("row", ENFORCED)
def test_a_schema_lets_its_texts_through_and_no_others(row: str) -> None:
    schema, good, bad = (ENFORCED[row][name] for name in ("schema", "good", "bad"))
    assert [text for text in good + bad if is_valid(schema, json.loads(text)) != (text in good)] == []
    found = enforced(schema)
    assert [text for text in good + bad if found.have(text) != (text in good)] == []


@pytest.mark.long
@pytest.mark.parametrize("row", ENFORCED)
def test_whatever_comes_up_satisfies_the_schema(row: str) -> None:
    schema = ENFORCED[row]["schema"]
    found = enforced(schema)
    ended = [text for seed in range(N_WALKS) if (text := found.any(random.Random(seed))) is not None]
    assert [text for text in ended if not is_valid(schema, json.loads(text))] == []
    assert ended


@pytest.mark.parametrize(
    "text", ["", "a", "01", "+1", ".5", "1.", "NaN", '"', '"\n"', '"\x7f"', r'"\x"', "[1, ]", '{"a"}', "nul", "// c\n1"]
)
def test_what_is_not_json_never_comes_up(text: str) -> None:
    assert not enforced({}).have(text)


@pytest.mark.long
def test_random_schemas_are_satisfied_whatever_way_a_text_goes() -> None:
    """Random ways take the turns that models seldom do: escapes, every optional part, odd characters."""
    n_ended = 0
    for seed in range(100):
        schema = random_schema(seed)
        text = enforced(schema).any(random.Random(seed))
        if text is not None:
            n_ended += 1
            jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
    assert n_ended > 90


def test_a_name_has_one_spelling_where_others_are_free() -> None:
    r"""Or "\u0061" would be a name besides "a", with any value, and the reader's "a"."""
    schema = record(properties={"a": integer()})
    assert not enforced(schema).have(r'{"a": 1, "\u0061": "x"}')
    assert not enforced(record(patternProperties={"^a": integer()})).have(r'{"\u0061": "x"}')
    assert enforced(record()).have(r'{"\u0061": "x"}')


@cases
def test_what_cannot_be_enforced_is_refused_in_words_that_name_it(schema: Any, words: str) -> None:
    found = texts(schema)
    assert isinstance(found, Refusal)
    assert words in found.message
    assert len(found.message) < 250


@pytest.mark.filterwarnings("ignore:Possible:FutureWarning")
@cases
def test_what_the_library_does_not_enforce_is_refused_before_it(schema: Any, text: str) -> None:
    """A gap is closed if the library refuses a row or turns its text down. Then its check can go."""
    found = unchecked(schema)
    assert isinstance(found, Texts)
    assert found.have(text)
    assert not is_valid(schema, json.loads(text))
    assert gap(schema) is not None
    assert isinstance(texts(schema), Refusal)


@cases
def test_what_never_ends_is_refused_before_it_begins(schema: Any) -> None:
    found = texts(schema)
    assert isinstance(found, Refusal)
    assert found.message.endswith("leads back to itself is required, so that nothing can satisfy it")


@cases
def test_what_can_end_is_enforced_however_deep_it_may_go(schema: Any) -> None:
    enforced(schema)


@pytest.mark.parametrize("n", [1, 20_000])
def test_a_circle_is_found_however_long_it_is(n: int) -> None:
    defs = {f"d{i}": {"$ref": f"#/$defs/d{(i + 1) % n}"} for i in range(n)}
    assert "leads back" in (gap({"$defs": defs}) or "")
    assert gap({"$defs": defs | {f"d{n - 1}": {}}}) is None


def test_words_of_the_library_alone_are_refused() -> None:
    """Its own format, which every text has, and its options, which a schema might change."""
    for schema in (string(format="unknown"), {"x-guidance": {"whitespace_pattern": "[x]+"}}):
        assert isinstance(unchecked(schema), Texts)
        assert isinstance(texts(schema), Refusal)


@cases
def test_a_check_turns_down_nothing_that_is_enforced(schema: Any) -> None:
    enforced(schema)


@pytest.mark.parametrize("schema", [{"a": 1}, "sesame", ["sesame"], {"const": "sesame"}, None, 1e400, {"enum": [{}]}])
@pytest.mark.parametrize(
    "keyword",
    [
        "type",
        "enum",
        "minimum",
        "multipleOf",
        "minLength",
        "pattern",
        "format",
        "required",
        "properties",
        "items",
        "$ref",
        "oneOf",
        "$id",
        "$schema",
    ],
)
def test_a_value_of_the_wrong_kind_is_no_failure_and_is_not_quoted(keyword: str, schema: Any) -> None:
    for whole in ({keyword: schema}, {"properties": {"a": {keyword: schema}}}):
        if isinstance(found := texts(whole), Refusal):
            assert "sesame" not in found.message


@pytest.mark.parametrize(
    "error", ["", "something new: sesame", "Unknown format: sesame", 'Unsatisfiable schema: Constant "sesame"']
)
def test_an_error_of_the_library_is_never_passed_on(error: str) -> None:
    message = plain(error, {"const": "sesame"})
    assert message
    assert "sesame" not in message


@pytest.mark.long
@pytest.mark.parametrize(
    "schema",
    [
        string(pattern="[" * 60_000),
        string(pattern="Expected regex parse error (" * 2000),
        {"properties": {"n" * 30_000: {"anyOf": [{}] * 8000}}},
        {"anyOf": [integer(multipleOf=multiple) for multiple in range(1, 2000)]},
        {"anyOf": [number(multipleOf=10.0**exponent) for exponent in range(-300, 300)]},
        record(properties={f"p{i}": {"oneOf": [{"$ref": "#"}]} for i in range(1500)}),
    ],
    ids=["sets", "words", "places", "multiples", "exponents", "branches"],
)
def test_a_check_takes_no_longer_for_a_hostile_schema(schema: Any) -> None:
    """Within a second, of some 64 KiB; the least of three, as another process may hold one up."""

    def check_s() -> float:
        began_s = time.process_time()
        gap(schema)
        plain(json.dumps(schema), schema)
        readable(schema)
        return time.process_time() - began_s

    assert min(check_s() for _ in range(3)) < 1


@cases
def test_a_valid_text_that_does_not_come_up(schema: Any, text: str) -> None:
    assert is_valid(schema, json.loads(text))
    assert not enforced(schema).have(text)


@cases
def test_a_text_that_comes_up_though_its_format_rules_it_out(format_: str, text: str) -> None:
    assert not keeps(format_, text)
    assert enforced(string(format=format_)).have(json.dumps(text))


def keeps(format_: str, text: str) -> bool:
    return bool(jsonschema_rs.Draft202012Validator({"format": format_}, validate_formats=True).is_valid(text))


@pytest.mark.long
@pytest.mark.parametrize("format_", FORMATS)
def test_a_format_is_kept_but_for_what_is_known(format_: str) -> None:
    found = enforced(string(format=format_))
    came_up = [json.loads(text) for seed in range(60) if (text := found.any(random.Random(seed))) is not None]
    broken = [text for text in came_up if not keeps(format_, text)]
    assert len(came_up) > 10
    assert [text for text in broken if not KNOWN.get(format_, NEVER).search(text)] == []


def test_no_format_speaks_of_numbers() -> None:
    """OpenAPI's int32 and double are notes there, as JSON schema has it."""
    assert enforced(integer(format="int32")).have(str(2**40))
