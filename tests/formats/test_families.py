"""A family's notation is found by the marks in a template's source."""

import tomllib
from importlib.resources import files

import msgspec
import pytest

from worker.formats.tool_format import Family, declared, formats
from worker.wire.chat_format import CallFormat, ChatFormat, ReasoningFormat


@pytest.mark.parametrize("family", formats().family, ids=lambda family: family.format.name)
def test_a_family_is_found_by_its_marks(family: Family) -> None:
    assert declared("{{ '" + "' + '".join(family.marks) + "' }}") == family.format


@pytest.mark.parametrize("family", formats().family, ids=lambda family: family.format.name)
def test_all_marks_of_a_family_are_needed(family: Family) -> None:
    for missing in family.marks:
        source = " ".join(mark for mark in family.marks if mark != missing and missing not in mark)
        assert declared(source) != family.format


def test_a_template_without_calls_is_of_no_family() -> None:
    assert declared("{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}") is None
    assert declared("") is None


def test_each_family_has_one_name_and_says_that_it_is_declared() -> None:
    names = [family.format.name for family in formats().family]
    assert len(set(names)) == len(names)
    assert {family.format.source for family in formats().family} == {"declared"}


def test_each_key_of_a_row_is_a_field() -> None:
    def unknown(row: dict[str, object], shape: type[msgspec.Struct]) -> set[str]:
        return row.keys() - {field.name for field in msgspec.structs.fields(shape)}

    table = tomllib.loads(files("worker.formats").joinpath("formats.toml").read_text("utf-8"))
    assert not any(unknown(pair, ReasoningFormat) for pair in table["reasoning"])
    for row in table["family"]:
        form = row["format"]
        assert not unknown(row, Family) | unknown(form, ChatFormat) | unknown(form.get("calls", {}), CallFormat)
        assert not unknown(form.get("reasoning", {}), ReasoningFormat)
