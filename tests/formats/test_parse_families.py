"""Each family's traps: what its models write beside the form of their template, and how that is read."""

import json

import pytest

from tests.formats.test_parse import read
from tests.formats.writing import FORMATS
from tests.tables import cases, table
from worker.formats.read.parse import Call, Message, message_of

TOOLS = table(__file__, "TOOLS")
WEATHER = '{"name": "weather", "arguments": {"days": 2}}'


@cases
@pytest.mark.parametrize("size", [1, 4, 10_000])
def test_a_family_is_read_with_its_traps(
    family: str, text: str, is_reasoning: bool, message: list[object], size: int
) -> None:
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    found = message_of(read(FORMATS[family], TOOLS, pieces, is_reasoning=is_reasoning))
    assert [found.content, found.reasoning, [[one.name, json.loads(one.arguments)] for one in found.calls]] == message


def test_every_family_has_a_trap() -> None:
    families = {row["family"] for row in table(__file__, "test_a_family_is_read_with_its_traps")}
    assert families >= FORMATS.keys() - {"generic", "smollm3"}


@cases
def test_a_models_own_id_is_kept_and_a_second_like_it_is_not(family: str, text: str, ids: list[str]) -> None:
    assert [call.id for call in message_of(read(FORMATS[family], TOOLS, [text])).calls] == ids


@pytest.mark.parametrize("family", ["hermes", "qwen3", "generic"])
def test_arguments_that_break_are_given_out_up_to_the_calls_end(family: str) -> None:
    """The client sees what the model wrote, and no marker."""
    text = '<tool_call>\n{"name": "weather", "arguments": {"days": [1}, 2}\n</tool_call>\nDone.'
    message = message_of(read(FORMATS[family], TOOLS, list(text)))
    assert message == Message("\nDone.", "", (Call("id-0", "weather", '{"days": [1}, 2}\n'),))


def test_arguments_that_json_allows_are_passed_on_unchanged() -> None:
    arguments = '{ "days" :2,\n"city":"a\\u00e9é" ,"hours":[1e5,-0.0]}'
    text = f'<tool_call>{{"name": "weather", "arguments": {arguments} }}</tool_call>'
    assert message_of(read(FORMATS["hermes"], TOOLS, list(text))).calls[0].arguments == arguments


def test_without_tools_no_call_is_read_and_nothing_is_held_back() -> None:
    text = f"Hi. <tool_call>\n{WEATHER}\n</tool_call> "
    deltas = read(FORMATS["hermes"], {}, list(text))
    assert message_of(deltas) == Message(text, "", ())
    assert len(deltas) == len(text)
