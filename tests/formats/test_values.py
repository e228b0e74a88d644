"""A value's types by its schema: choices among choices, and schemas that mean harm."""

import pytest

from worker.formats.read.values import ANY, items, member, types_of

POINT = {"type": "object", "properties": {"x": {"type": "string"}}}
LIST = {"type": "array", "items": {"type": "integer"}}


@pytest.mark.parametrize("key", ["anyOf", "oneOf", "allOf"])
def test_a_member_and_an_item_may_stand_in_a_choice(key: str) -> None:
    root = {"$defs": {"point": POINT}, key: [{"type": "null"}, {"$ref": "#/$defs/point"}, {key: [LIST]}]}
    assert member(root, root, "x") == {"type": "string"}
    assert member(root, root, "y") is None
    assert items(root, root) == {"type": "integer"}


def test_types_of_choices_are_those_of_all() -> None:
    root = {"$defs": {"point": POINT}, "anyOf": [{"type": "null"}, {"oneOf": [LIST, {"$ref": "#/$defs/point"}]}]}
    assert types_of(root, root) == {"null", "array", "object"}
    assert types_of({"anyOf": [root, {}]}, root) == ANY


@pytest.mark.timeout(10)
@pytest.mark.parametrize("key", ["anyOf", "oneOf", "allOf"])
def test_choices_of_choices_take_no_time(key: str) -> None:
    n_wide, n_deep = 50, 30
    chain = {f"d{n}": {key: [{"$ref": f"#/$defs/d{n + 1}"}] * n_wide} for n in range(n_deep)}
    for root in ({key: [{"$ref": "#"}] * n_wide}, {"$defs": chain, **chain["d0"]}):
        assert types_of(root, root) == ANY
        assert member(root, root, "x") is None
        assert items(root, root) is None
