"""Templates render as transformers renders them, and those that mean harm end in words."""

import subprocess
import sys
from collections.abc import Mapping
from copy import deepcopy
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.formats.conversations import KINDS, Kind
from tests.formats.hostile_templates import END_THE_PROCESS, SOURCES
from tests.llama_source import templates
from tests.tables import cases
from worker.formats.render.escapes import ControlNames
from worker.formats.render.sandbox import MAX_SOURCE_CHARS, BrokenTemplate, Runaway, Sandbox, Unrendered
from worker.formats.render.template import ChatTemplate

FUEL, MAX_CHARS = 2_000_000, 1_000_000


def render(source: str, values: Mapping[str, object] | None = None, *, max_chars: int = MAX_CHARS) -> str:
    return Sandbox(source, lambda: datetime(2026, 1, 2)).render(values or {}, fuel=FUEL, max_chars=max_chars)


@cases
def test_it_writes_what_jinja_writes(source: str, text: str) -> None:
    assert render(source) == text


@pytest.mark.parametrize("end", ["\r\n", "\r", "\n"])
@cases
def test_lines_end_as_in_jinja(source: str, text: str, end: str) -> None:
    assert render(source.replace("\n", end)) == text


def test_carriage_returns_of_a_conversation_stay() -> None:
    assert render("{{ x }}\r\n{{ x }}", {"x": "a\r\nb\r"}) == "a\r\nb\r\na\r\nb\r"


@pytest.mark.model
@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_a_template_writes_the_same_with_any_line_end(end: str) -> None:
    for source in (path.read_text() for path in templates()):
        for kind in (KINDS["a call and its answer"], KINDS["signs"]):
            assert rendered(source.replace("\n", end), kind) == rendered(source, kind)


def test_lists_in_a_namespace_grow_and_shrink() -> None:
    """Kimi's templates have this loop."""
    source = (
        "{%- set ns = namespace(ids=[]) -%}{%- for x in [1, 2, 3] -%}{%- set _ = ns.ids.append(x) -%}{%- endfor -%}"
        "{%- set first = ns.ids.pop(0) -%} {{ first }} {{ ns.ids }}"
    )
    assert render(source) == "1 [2, 3]"


@pytest.mark.torch
@pytest.mark.parametrize("kind", KINDS)
def test_llama_cpps_templates_write_what_they_write_in_transformers(kind: str) -> None:
    found = {path.stem for path in templates() if not is_as_in_transformers(path, KINDS[kind])}
    assert found == {name for name, kinds in OTHERWISE.items() if kind in kinds}


CALLS = {"a call", "a call and its answer", "calls", "arguments as text", "no content", "reasoning before a call"}
OTHERWISE = {"meetkai-functionary-medium-v3.1": {"tools", "a number"} | CALLS}
"""Templates, and the kinds of conversations that they render otherwise. This one joins a text that is marked as safe
with others, which has Jinja escape their HTML, which no author meant: eight of 1,750 renderings."""


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["one turn", "prefill", "reasoning", "signs"])
def test_conversations_in_supported_forms_are_rendered_as_in_transformers(kind: str) -> None:
    """Also one that goes on where its last message ends, and with whatever is marked on the way."""
    from transformers.utils import chat_template_utils  # noqa: PLC0415 - takes seconds

    asked, n_compared = KINDS[kind], 0
    for source in (path.read_text() for path in templates()):
        given = {"continue_final_message": asked.is_continued, "add_generation_prompt": asked.is_open, **TOKENS}
        try:
            expected = chat_template_utils.render_jinja_template([asked.messages], chat_template=source, **given)[0][0]
        except Exception:  # noqa: BLE001, S112 - whatever a template runs into
            continue
        template = ChatTemplate(source, ControlNames(["<|im_end|>", "<｜User｜>", "[INST]", "</s>"]), TOKENS, {})
        messages = deepcopy(asked.messages)
        found = template.render(
            messages, tools=None, variables={}, is_open=asked.is_open, is_continued=asked.is_continued
        )
        assert found.text == expected
        n_compared += 1
    assert n_compared > 60


TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def is_as_in_transformers(path: Path, kind: Kind) -> bool:
    """Also where transformers refuses and the sandbox does not: Jinja has no loop over None and no JSON of a generator,
    of which the three templates that need `tools` to be a list and two others make use."""
    source = path.read_text()
    expected = rendered_by_transformers(source, kind)
    return expected is None or rendered(source, kind) == expected


def rendered(source: str, kind: Kind) -> str | None:
    """None where it is refused."""
    try:
        return Sandbox(source, datetime.now).render(values_of(kind), fuel=FUEL, max_chars=MAX_CHARS)
    except Unrendered:
        return None


def rendered_by_transformers(source: str, kind: Kind) -> str | None:
    from transformers.utils import chat_template_utils  # noqa: PLC0415 - takes seconds

    try:
        return str(chat_template_utils._compile_jinja_template(source).render(**values_of(kind)))
    except Exception:  # noqa: BLE001 - whatever a template runs into
        return None


def values_of(kind: Kind) -> dict[str, Any]:
    """The values that transformers passes to a template."""
    given = {"messages": kind.messages, "tools": kind.tools, "documents": None, "add_generation_prompt": kind.is_open}
    return {**TOKENS, **given, **(kind.variables or {})}


def test_a_failure_names_only_its_kind_and_line() -> None:
    for source in ("\n{{ x.y.z }}", "\n{{ [secret] + 1 }}", "\n{{ secret | nothing }}"):
        with pytest.raises((Unrendered, BrokenTemplate), match=r"^[^'\"]*in line 2$") as error:
            render(source, {"secret": "hidden"})
        assert "hidden" not in str(error.value)
    with pytest.raises(Unrendered, match=r"^the chat template fails on this conversation: [A-Za-z]+$"):
        render("{{ x.index('a') }}", {"x": []})


def test_a_loop_ends_with_its_fuel_and_a_text_with_its_limit() -> None:
    with pytest.raises(Runaway, match="takes too long"):
        render("{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}")
    with pytest.raises(Runaway, match="writes more than 100 characters"):
        render("{{ 'x' * 101 }}", max_chars=100)


def test_a_template_is_no_longer_than_is_allowed() -> None:
    render("x" * MAX_SOURCE_CHARS)
    with pytest.raises(BrokenTemplate, match=str(MAX_SOURCE_CHARS)):
        render("x" * (MAX_SOURCE_CHARS + 1))


@pytest.mark.process
@pytest.mark.parametrize("name", SOURCES)
def test_a_hostile_template_ends_with_an_error_or_with_the_process(name: str) -> None:
    command = [sys.executable, "-m", "tests.formats.hostile_templates", name]
    ended = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode == 0) == (name not in END_THE_PROCESS), ended.stderr[-2000:]
    assert all(line.startswith(("broken: ", "refused: ", "rendered: ")) for line in ended.stdout.splitlines())
    assert "root:" not in ended.stdout
    assert "<class" not in ended.stdout
    assert "object at 0x" not in ended.stdout
