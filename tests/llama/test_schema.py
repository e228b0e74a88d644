"""What becomes of a schema, tried on llama.cpp's own grammars byte by byte."""

import codecs
import json
import random
from typing import Any

import jsonschema
import pytest
from llama_cpp.llama_grammar import PRIMITIVE_RULES, SPACE_RULE

from tests.llama.bytewise import byte, is_text, submit
from tests.llama.tiny import END
from tests.random_schemas import random_schema
from worker.engine.contract import Violation
from worker.llama.grammar import Grammar, Grammars
from worker.llama.schema import MAX_GBNF_CHARACTERS, Unsupported, gbnf_of
from worker.protocol.json_schema import plain_schema

MAX_WALK = 1000

SECRET = "sesame"

OBJECT = {
    "type": "object",
    "properties": {
        **{name: {"type": "number"} for name in ("integral part", "decimal_part", "char", "space", "root", "value")},
        "date_time": {"enum": [1]},
        "at": {"type": "string", "format": "date-time"},
        "wörld": {"const": None},
    },
    "required": ["integral part", "at"],
}
"""Names that the converter has for rules of its own, as it spells them and otherwise."""


def constrain(grammars: Grammars, schema: Any) -> Grammar:
    constraint = grammars.constrain(submit(json_schema=json.dumps(schema)))
    assert isinstance(constraint, Grammar), constraint
    return constraint


def test_the_converter_is_the_one_whose_mistakes_we_know() -> None:
    """When this fails, read the converter again: a repair here may have become wrong, or needless."""
    assert SPACE_RULE == '" "?'
    assert PRIMITIVE_RULES["char"].content == (
        r'[^"\\] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F])'
    )


@pytest.mark.parametrize(
    ("schema", "texts", "others"),
    [
        ({"type": "string"}, ['""', r'"\n\"\\é한🎈"', r'"\u00e9\uD7ff"'], ['"\n"', '"\x1f"', r'"\ud83d\ude00"', '"']),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', r'"\n🎈é"'], ['"a"', '"abcd"']),
        ({"enum": ['say "a\\b"', "é🎈\t", [1, "x"]]}, [r'"say \"a\\b\""', r'"é🎈\t"', '[1, "x"]'], ['"say']),
        ({"type": "integer"}, ["0", "-7", "123"], ["01", "1.5", "+1", ""]),
        ({"type": "number"}, ["0.50", "-1e9", "2E+3"], [".5", "1.", "NaN"]),
        ({"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, ["[]", "[true, false]"], ["[true,]", "[0]"]),
        (OBJECT, ['{"integral part": 12.5, "at": "2024-02-29T23:59:59Z", "wörld": null}'], ['{"integral part": x}']),
        (OBJECT, ['{"integral part":0,"at":"2024-02-29T00:00:00Z","date_time":1}'], ['{"at":"x"}', "{}"]),
    ],
)
def test_a_schema_takes_its_texts_and_no_others(
    grammars: Grammars, schema: Any, texts: list[str], others: list[str]
) -> None:
    for text in texts + others:
        assert is_text(constrain(grammars, schema), text) == (text in texts), text


def is_begun(character: bytes) -> bool:
    """Whether some bytes after these make it one UTF-8 character; llama.cpp is not so strict."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(character)
    except UnicodeDecodeError:
        return False
    return True


def walk(grammar: Grammar, rng: random.Random) -> str | None:
    """A text that the grammar takes, each byte drawn from those it allows; None: it did not end in time."""
    text, character = "", b""
    for _ in range(MAX_WALK):
        allowed = grammar.allowed()
        following = [value for value in range(256) if allowed[byte(value)] and is_begun(character + bytes([value]))]
        if allowed[END] and (not following or rng.random() < 0.5):
            return text
        # Mostly what belongs to the notation, so that strings end and numbers go on.
        plain = [value for value in following if value in b'"}],: 0123456789']
        character += bytes([rng.choice(plain if plain and rng.random() < 0.7 else following)])
        grammar.accept(byte(character[-1]))
        whole = character.decode(errors="ignore")
        text, character = text + whole, b"" if whole else character
    return None


def test_whatever_way_an_answer_goes_it_satisfies_its_schema(grammars: Grammars) -> None:
    """Random ways take the turns that models seldom do: escapes, every optional part, odd characters."""
    n_finished = 0
    for seed in range(100):
        schema = random_schema(seed)
        grammar = grammars.constrain(submit(json_schema=plain_schema(schema)))
        assert isinstance(grammar, Grammar), grammar
        text = walk(grammar, random.Random(seed))
        grammar.close()
        if text is not None:
            n_finished += 1
            jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
    assert n_finished > 90


def chain(n: int) -> dict[str, Any]:
    definitions = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(n)}
    return {"anyOf": [{"$ref": "#/$defs/d0"}], "$defs": {**definitions, f"d{n}": {"type": "null"}}}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"not": {"const": SECRET}}, "cannot be read by the converter to GBNF (AssertionError)"),
        ({"$ref": f"https://{SECRET}.example/"}, "(AssertionError)"),
        ({"$ref": SECRET}, "(ValueError)"),
        ({"$ref": f"#/{SECRET}"}, "(AssertionError)"),
        ({"type": "array", "items": {}}, "(KeyError)"),
        ({"type": "string", "pattern": "^*$"}, "(IndexError)"),
        ({"enum": [float("inf")]}, "(ValueError)"),
        (False, "(AttributeError)"),
        (7, "(AttributeError)"),
        (chain(2000), "(RecursionError)"),
        ({"enum": list(range(2000))}, "cannot be used: more than 600 alternatives"),
        ({"type": "string", "pattern": r"^\d$"}, "cannot be used: this cannot be read"),
        ({"enum": ["\ud800"]}, "cannot be used: this character cannot be part of a grammar"),
        ({"type": "string", "maxLength": 1001}, "cannot be used: parentheses are nested deeper than 1000"),
    ],
)
def test_a_schema_that_the_front_would_not_send_is_refused_and_not_quoted(
    grammars: Grammars, schema: Any, message: str
) -> None:
    answer = grammars.constrain(submit(json_schema=json.dumps(schema)))
    assert isinstance(answer, Violation)
    assert (answer.field, answer.constraint) == ("json_schema", "supported")
    assert answer.message.startswith("json_schema ")
    assert message in answer.message
    assert SECRET not in answer.message


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(Unsupported, match="JSONDecodeError"):
        gbnf_of("{")


def test_a_grammar_is_given_up_before_it_is_large() -> None:
    """Counts inside of long names, which the converter would spell out every time."""
    items = {"type": "array", "items": {"type": "array", "items": {"const": 1}, "minItems": 900}, "minItems": 900}
    schema = {"type": "object", "properties": {f"{'x' * 60_000}{i}": items for i in range(200)}}
    with pytest.raises(Unsupported, match=f"more than {MAX_GBNF_CHARACTERS} characters"):
        gbnf_of(json.dumps(schema))


ALL_OPTIONAL = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(128)}}
"""As many as the front takes, and values as many."""
ALL_VALUES = {"anyOf": [{"enum": [f"v{i}" for i in range(500)]}, {"type": "null"}, {"type": "array"}]}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "maxLength": 1000},
        {"type": "string", "minLength": 1000},
        {"type": "array", "items": {"const": 1}, "maxItems": 1000},
        {"type": "array", "items": {"const": 1}, "minItems": 1000, "maxItems": 1000},
        ALL_OPTIONAL,
        ALL_VALUES,
        {"type": "object", "properties": {"one": ALL_VALUES, "other": ALL_VALUES}},
    ],
)
def test_the_largest_numbers_that_the_front_takes_are_compiled(grammars: Grammars, schema: Any) -> None:
    constrain(grammars, json.loads(plain_schema(schema))).close()
