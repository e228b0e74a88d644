"""A family's notation is found by the marks in a template's source."""

import pytest

from worker.chat.families import FAMILIES, Family, declared


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.format.name)
def test_a_family_is_found_by_its_marks(family: Family) -> None:
    assert declared("{{ '" + "' + '".join(family.marks) + "' }}") == family.format


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.format.name)
def test_all_marks_of_a_family_are_needed(family: Family) -> None:
    for missing in family.marks:
        source = " ".join(mark for mark in family.marks if mark != missing and missing not in mark)
        assert declared(source) != family.format


def test_a_template_without_calls_is_of_no_family() -> None:
    source = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>{% endfor %}"
    assert declared(source) is None
    assert declared("") is None


def test_each_family_has_one_name_and_says_that_it_is_declared() -> None:
    names = [family.format.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    assert {family.format.source for family in FAMILIES} == {"declared"}
