"""The markers with which a call ends the reasoning, and what the engine makes of them."""

import pytest

from tests.formats.writing import FORMATS
from worker.engine.channels import CONTENT, Channel, marks_among
from worker.models.loading.load import enders_of
from worker.wire.jobs import TokenId

CONTROLS = {"<think>": TokenId(1), "</think>": TokenId(2), "<tool_call>": TokenId(3), "": TokenId(4)}


@pytest.mark.parametrize(
    ("name", "controls", "enders"),
    [
        ("qwen3", ("<tool_call>", "</tool_call>"), ["<tool_call>\n"]),
        ("qwen3", ("<|im_end|>", ""), []),
        ("glm-4.5", (), ["<tool_call>"]),
        ("command-r7b", ("<|START_ACTION|>",), ["<|START_ACTION|>[\n    "]),
        ("ministral", ("[TOOL_CALLS]", "[ARGS]"), ["[TOOL_CALLS]"]),
        ("nemotron-nano-v2", ("<s>",), []),
    ],
)
def test_a_control_token_ends_the_reasoning_in_every_form(
    name: str, controls: tuple[str, ...], enders: list[str]
) -> None:
    assert enders_of(FORMATS[name], controls) == enders


def test_the_reasoning_ends_at_the_token() -> None:
    marks = marks_among(CONTROLS, None, None, ("<tool_call>",), enders_of(FORMATS["qwen3"], CONTROLS))
    thinking = marks.after(CONTENT, TokenId(1), b"")
    assert thinking.channel is Channel.REASONING
    assert marks.after(thinking, TokenId(3), b"") is CONTENT
