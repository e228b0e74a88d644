"""A conversation never adds a control token to those that llama.cpp's templates write, and never removes one."""

import copy
import re
from pathlib import Path

import pytest

from tests.formats.conversations import KINDS, Kind, Message
from tests.llama_source import templates
from worker.formats.render.escapes import ControlNames
from worker.formats.render.sandbox import BrokenTemplate, Unrendered
from worker.formats.render.template import ChatTemplate, Rendered

pytestmark = pytest.mark.model

NAME = re.compile(
    r"<\|[^|\s']{1,40}\|>|<｜[^｜]{1,40}｜>|\[/?[A-Z_]+\]|<(?:end|start)_of_[a-z]+>|\]~b\]|<\|turn>|<turn\|>"
)
"""The form of control tokens' names."""
WORD = "zebra"


@pytest.mark.parametrize("path", templates(), ids=lambda path: path.stem)
def test_names_in_a_conversation_are_letters(path: Path) -> None:
    source = path.read_text()
    names = ControlNames({*NAME.findall(source), "<s>", "</s>"})
    try:
        template = ChatTemplate(source, names, {"bos_token": "<s>", "eos_token": "</s>"}, {})
    except BrokenTemplate:
        pytest.skip("it renders nothing without what only its users know")
    for kind in KINDS.values():
        if (plain := rendered(template, kind, WORD)) is None:
            continue
        assert plain.controls is None
        for forged in (*sorted(names.all), "".join(sorted(names.all)), *halves(names)):
            found = rendered(template, kind, forged)
            assert found is not None
            assert written(names, found) == written(names, plain), forged


def halves(names: ControlNames) -> list[str]:
    return [f"{name[n:]}{name[:n]}" for name in sorted(names.all)[:2] for n in (1, 2)]


def rendered(template: ChatTemplate, kind: Kind, said: str) -> Rendered | None:
    """The rendering with the word at both ends of every message; None if the template refuses."""
    messages: list[Message] = copy.deepcopy(kind.messages)
    for message in messages:
        content = message["content"]
        if isinstance(content, str) and content:
            message["content"] = f"{said}{content.strip()}{said}"
        elif isinstance(content, list):
            message["content"] = [{"type": "text", "text": said}, *content]
    try:
        return template.render(
            messages,
            tools=copy.deepcopy(kind.tools),  # type: ignore[arg-type]  # JSON
            variables=dict(kind.variables or {}),  # type: ignore[arg-type]
            is_open=kind.is_open,
            is_continued=kind.is_continued,
        )
    except Unrendered:
        return None


def written(names: ControlNames, found: Rendered) -> list[str]:
    spans = names.spans(found.text) if found.controls is None else found.controls
    return [found.text[start:end] for start, end in spans]
