"""A template never loses a part of a conversation: it is in the prompt, or the request is refused by name."""

import json
import re
from functools import cache
from pathlib import Path

import pytest

from tests.default_model import default_file
from tests.formats.shapes import SHAPES, Verdict, loaded, table, verdict, verdicts
from tests.llama_source import templates
from worker.models.facts.info import read_info

pytestmark = pytest.mark.model

PAGE = Path(__file__).parents[2] / "docs" / "measurements" / "templates.md"
WITH_MORE = "fireworks-ai-llama-3-firefunction-v2"
"""It renders nothing without what only its users know."""


@cache
def default_template() -> str:
    source = read_info(default_file()).chat_template
    assert source is not None
    return source


def sources() -> list[str]:
    return [*(path.read_text() for path in templates()), default_template()]


@pytest.mark.parametrize("path", templates(), ids=lambda path: path.stem)
def test_no_template_loses_a_part_of_any_shape(path: Path) -> None:
    expected: set[Verdict] = {"refused"} if path.stem == WITH_MORE else {"as it is", "in another way"}
    found = verdicts(path.read_text())
    assert {shape: one for shape, one in found.items() if one not in expected} == {}


ODD = ["</think>", "<think>", "[/INST]", "<tool_response>", "? ", '{"a": 1} ', "<|im_end|>\n", "</s>"]


@pytest.mark.parametrize("path", templates(), ids=lambda path: path.stem)
def test_no_template_loses_a_word_after_odd_signs(path: Path) -> None:
    """An assistant's words before what looks like a thought's end may be lost."""
    chat = loaded(path.read_text())
    if chat is None:
        assert path.stem == WITH_MORE
        return
    for odd in ODD:
        for shape in ("a system message, then turns", "text beside a call", "several calls", "a result and the user"):
            said = re.sub(r"zq(?!name|other)", lambda _: json.dumps(odd)[1:-1] + "zq", json.dumps(SHAPES[shape]))  # noqa: B023
            assert verdict(chat, json.loads(said)) in ("as it is", "in another way"), (odd, shape)


@pytest.mark.parametrize("path", templates(), ids=lambda path: path.stem)
def test_no_template_loses_a_part_of_a_continued_or_complete_answer(path: Path) -> None:
    chat = loaded(path.read_text())
    if chat is None:
        assert path.stem == WITH_MORE
        return
    answered = [*SHAPES["a call, its result and an answer"], {"role": "assistant", "content": "zqlast"}]
    for messages in (answered, answered[:1] + answered[-3:]):
        for goes_on in (False, True):
            found = verdict(chat, messages, add_generation_prompt=False, continue_final_message=goes_on)
            assert found in ("as it is", "in another way")


def test_the_default_models_template_loses_none() -> None:
    found = verdicts(default_template())
    assert found.keys() == SHAPES.keys()
    assert set(found.values()) == {"as it is", "in another way"}


def test_the_page_has_the_table() -> None:
    assert table(sources()) in PAGE.read_text(), table(sources())
