"""JSON comes to its end before the tokens run out, whatever is drawn: byte by byte on the tiny model."""

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from tests.constraints.bytewise import constrain
from tests.random_schemas import random_schema
from worker.constraints.constraint import Constraint
from worker.constraints.jobs import Constraints
from worker.llama.model import Model
from worker.wire.jobs import TokenId

TREE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["name", "children"],
    "additionalProperties": False,
}
LINKED = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["value", "next"],
    "additionalProperties": False,
}
SUM = {
    "$defs": {
        "number": {
            "type": "object",
            "properties": {"kind": {"const": "number"}, "value": {"type": "number"}},
            "required": ["kind", "value"],
            "additionalProperties": False,
        },
        "add": {
            "type": "object",
            "properties": {"kind": {"const": "add"}, "left": {"$ref": "#/$defs/any"}, "right": {"$ref": "#/$defs/any"}},
            "required": ["kind", "left", "right"],
            "additionalProperties": False,
        },
        "any": {"anyOf": [{"$ref": "#/$defs/add"}, {"$ref": "#/$defs/number"}]},
    },
    "$ref": "#/$defs/any",
}
ENDLESS: dict[str, Any] = {
    "anything": {},
    "string": {"type": "string"},
    "long-string": {"type": "string", "minLength": 20},
    "pattern": {"type": "string", "pattern": "^[a-z]+(-[a-z]+)*@[a-z]+$"},
    "slow-pattern": {"type": "string", "pattern": "^-*a{3}$"},
    "number": {"type": "number"},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 100},
    "list": {"type": "array", "items": {"type": "string"}, "minItems": 2},
    "lists": {"type": "array", "items": {"$ref": "#"}},
    "map": {"type": "object", "additionalProperties": {"type": "string", "format": "date"}},
    "record": {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "array"}, "c": {"type": "string", "format": "email"}},
        "required": ["a", "b", "c"],
    },
    "tree": TREE,
    "linked": LINKED,
    "sum": SUM,
}
"""Schemas whose texts may go on for ever."""


def least(constraints: Constraints, schema: Any, model: Model) -> int:
    """The least number of tokens that is enough for a text; any larger number must be enough, too."""
    return next(
        n for n in range(1, 300) if all(answer(constraints, schema, n, seed, model)[2] for seed in range(10, 14))
    )


def answer(
    constraints: Constraints, schema: Any, n_tokens: int, seed: int, model: Model, *, ahead: int = 0
) -> tuple[bytes, int, bool]:
    """The text of a model that never wants to end, how many tokens it has, and whether it may end there. With `ahead`,
    this many tokens are drawn before they are taken, as drafted ones are."""
    constraint = constrain(constraints, json_schema=json.dumps(schema))
    constraint.begin(n_tokens)
    tokens = [each.id for each in constraint.take_forced(n_tokens)]
    while len(tokens) < n_tokens and not constraint.is_over:
        drawn: list[TokenId] = []
        for _ in range(1 + min(ahead, n_tokens - len(tokens) - 1)):
            drawn.append(draw(constraint, random.Random(f"{seed} {len(tokens) + len(drawn)}"), model))
            if model.is_end(drawn[-1]):
                break
            constraint.accept(drawn[-1])
            if constraint.is_over or constraint.forced():
                break
        constraint.take_back(sum(not model.is_end(token) for token in drawn))
        for token in drawn:
            if model.is_end(token):
                return text_of(tokens, model), len(tokens), True
            constraint.accept(token)
            tokens.append(token)
        tokens += [each.id for each in constraint.take_forced(n_tokens - len(tokens))][: n_tokens - len(tokens)]
    is_whole = constraint.is_over or bool(constraint.allowed()[model.ends].all())
    return text_of(tokens, model), len(tokens), is_whole


def draw(constraint: Constraint, rng: random.Random, model: Model) -> TokenId:
    """Anything but an end, mostly what opens."""
    allowed = [int(token) for token in np.flatnonzero(constraint.allowed()) if token not in model.ends]
    opening = [token for token in allowed if model.piece(TokenId(token)) in (b"[", b"{", b'"', b"a", b",")]
    chosen = rng.choice(opening if opening and rng.random() < 0.8 else allowed) if allowed else int(model.ends[0])
    return constraint.settled(TokenId(chosen))


def text_of(tokens: list[TokenId], model: Model) -> bytes:
    return b"".join(model.piece(token) for token in tokens)


@pytest.mark.parametrize("name", ENDLESS)
def test_a_text_that_could_go_on_for_ever_ends_in_time(name: str, constraints: Constraints, bytewise: Model) -> None:
    schema = ENDLESS[name]
    n_least = least(constraints, schema, bytewise)
    for n_tokens in (n_least + 1, n_least + 7, 2 * n_least, 120, 300):
        for seed in range(4):
            text, _, is_whole = answer(constraints, schema, max(n_tokens, n_least + 1), seed, bytewise)
            assert is_whole, (n_tokens, text)
            jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)


@pytest.mark.parametrize("seed", range(30))
def test_answers_to_random_schemas_end_in_time(seed: int, constraints: Constraints, bytewise: Model) -> None:
    schema = random_schema(seed)
    text, _, is_whole = answer(constraints, schema, 300, seed, bytewise)
    assert is_whole, text
    jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.parametrize("n_tokens", [3, 40, 100])
def test_tokens_drawn_ahead_are_the_same(name: str, n_tokens: int, constraints: Constraints, bytewise: Model) -> None:
    schema = ENDLESS[name]
    alone = answer(constraints, schema, n_tokens, 1, bytewise)
    assert answer(constraints, schema, n_tokens, 1, bytewise, ahead=3) == alone


def test_with_time_to_spare_nothing_is_changed(constraints: Constraints, bytewise: Model) -> None:
    constraint = constrain(constraints, json_schema=json.dumps(TREE))
    constraint.begin(1000)
    text = b'{"name": "a quote \\" and a brace }", "children": [{"name": "x", "children": []}]}'
    tokens = [each.id for each in constraint.take_forced(100)]
    for value in text[len(tokens) :]:
        assert constraint.settled(TokenId(3 + value)) == 3 + value
        constraint.accept(TokenId(3 + value))
    assert constraint.is_over


def test_what_cannot_end_in_time_is_left_alone(constraints: Constraints, bytewise: Model) -> None:
    """The text is cut off, as it would be without a schema."""
    text, n_used, is_whole = answer(constraints, TREE, 12, 0, bytewise)
    assert (n_used, is_whole) == (12, False)
    assert text.startswith(b'{"name": "')
