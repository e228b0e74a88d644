"""The format that is found in a template is the format that the template writes."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.formats.hostile_templates import END_THE_PROCESS, SAYS, SOURCES
from tests.formats.shapes import TOKENS
from tests.formats.test_shapes import default_template
from tests.formats.trips import ENDS, Answer, format_of, loaded, read, table, verdicts
from tests.llama_source import templates
from worker.formats.render.escapes import ControlNames, Json
from worker.formats.render.forms import Forms, Message
from worker.formats.render.sandbox import BrokenTemplate
from worker.formats.render.template import ChatTemplate, ChatTemplates
from worker.formats.tool_format import MAX_RENDERINGS, chat_format, declared
from worker.wire.chat_format import HERMES, CallFormat, ChatFormat, ReasoningFormat

PAGE = Path(__file__).parents[2] / "docs" / "measurements" / "templates.md"
LAW = settings(max_examples=100)


def sources() -> list[tuple[str, str]]:
    found = [(path.stem, path.read_text()) for path in templates()]
    return [*found, ("the default model", default_template())]


@pytest.mark.model
@pytest.mark.parametrize("path", templates(), ids=lambda path: path.stem)
def test_what_a_template_writes_is_read_as_what_it_was_given(path: Path) -> None:
    assert "another" not in verdicts(path.read_text()).values()


@pytest.mark.model
def test_the_page_has_the_table() -> None:
    assert table(sources()) in PAGE.read_text(), table(sources())


@pytest.mark.model
def test_nearly_all_templates_that_write_calls_show_the_format() -> None:
    """A declaration that decides is an exception, for a notation that comparing texts cannot show."""
    formats = {name: form for name, source in sources() if (form := format_of(source))}
    writing = {name for name, source in sources() if verdicts(source)["a call"] != "not rendered"}
    decided = {form.name for name, form in formats.items() if name in writing and form.source == "declared"}
    assert decided == {"harmony", "gemma-4", "minimax-m3", "muse", "functionary-v3.2"}
    assert sum(form.source == "template" for form in formats.values()) >= 50


@pytest.mark.model
@pytest.mark.parametrize("path", templates(), ids=lambda path: path.stem)
def test_the_family_and_the_origin_do_not_depend_on_the_vocabulary(path: Path) -> None:
    """So `inspect`, which reads no vocabulary, names what `serve` names."""
    chat = loaded(path.read_text())
    if chat is not None:
        titles = {chat_format(chat.for_tools, ends).title for ends in (frozenset[str](), ENDS, frozenset({"</s>"}))}
        assert len(titles) == 1, titles


USER_TURN, ASSISTANT_TURN, TURN_END = "<|turn|>user\n", "<|turn|>assistant\n", "<|stop|>"
TEMPLATE = (
    "{%- if tools %}{{ tools | tojson }}{% endif -%}"
    "{%- for m in messages -%}"
    "{{ '<|turn|>' + m.role + '\n' }}"
    "{%- if m.reasoning_content %}{{ THINK }}{{ m.reasoning_content }}{{ ANSWER }}{% endif -%}"
    "{{ m.content or '' }}"
    "{%- if m.tool_calls -%}"
    "{{ SECTION }}"
    "{%- for c in m.tool_calls %}{% set f = c.function %}{{ BEGIN }}CALL{{ END }}"
    "{%- if not loop.last %}{{ BETWEEN }}{% endif %}{% endfor -%}"
    "{{ SECTION_END }}"
    "{%- endif -%}"
    "{{ '<|stop|>' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt %}{{ '<|turn|>assistant\n' }}{% endif -%}"
)
"""A template whose markers and whose notation of a call are put in."""
OBJECT = "{{ {NAME_KEY: f.name, ARGUMENTS_KEY: f.arguments} | tojson }}"
NAMED = "{{ f.name }}{{ NAME_END }}{{ f.arguments | tojson }}"
TAGGED = (
    "{{ f.name }}{{ NAME_END }}{% for k, v in f.arguments | items %}"
    "{{ KEY }}{{ k }}{{ VALUE }}{{ v if v is string else v | tojson }}{{ VALUE_END }}{% endfor %}"
)
WRITTEN = {"object": OBJECT, "named": NAMED, "tagged": TAGGED}


@dataclass(frozen=True)
class Made:
    """A template and its format."""

    source: str
    calls: CallFormat
    reasoning: ReasoningFormat


def jinja(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@st.composite
def made(draw: st.DrawFn) -> Made:
    """A template with markers of random words in signs of one kind, with and without white space around them."""
    sign = draw(st.sampled_from(["<{}>", "<|{}|>", "<｜{}｜>", "[{}]", "<{}:x>"]))
    word = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=8).map(str.upper)
    words = draw(st.lists(word, min_size=10, max_size=10, unique=True))
    marks = iter([sign.format(word) for word in words])
    line = st.sampled_from(["", "\n"])
    form: Literal["object", "named", "tagged"] = draw(st.sampled_from(["object", "named", "tagged"]))
    has_section = draw(st.booleans())
    space = draw(line)
    texts = {
        "THINK": next(marks),
        "ANSWER": next(marks),
        "SECTION": next(marks) + draw(line) if has_section else "",
        "SECTION_END": draw(line) + next(marks) if has_section else "",
        "BEGIN": next(marks) + space,
        "END": space + next(marks),
        "BETWEEN": draw(st.sampled_from(["", "\n", ", "])) if has_section and form == "object" else draw(line),
        "NAME_END": next(marks) + draw(line),
        "KEY": next(marks),
        "VALUE": next(marks),
        "VALUE_END": next(marks) + draw(line),
        "NAME_KEY": draw(st.sampled_from(["name", "tool", "function_name"])),
        "ARGUMENTS_KEY": draw(st.sampled_from(["arguments", "parameters", "args"])),
    }
    source = TEMPLATE.replace("CALL", WRITTEN[form])
    names = "".join("{%- set " + name + " = " + jinja(text) + " -%}" for name, text in texts.items())
    calls = CallFormat(
        form=form,
        section_begin=texts["SECTION"],
        section_end=texts["SECTION_END"],
        call_begin=texts["BEGIN"],
        call_end=texts["END"],
        between=texts["BETWEEN"],
    )
    if form == "object":
        calls = replace(calls, name_key=texts["NAME_KEY"], arguments_key=texts["ARGUMENTS_KEY"])
    else:
        calls = replace(calls, name_end=texts["NAME_END"])
    if form == "tagged":
        ends = {"parameter_begin": "KEY", "parameter_name_end": "VALUE", "parameter_end": "VALUE_END"}
        calls = replace(calls, **{field: texts[name] for field, name in ends.items()})
    return Made(names + source, calls, ReasoningFormat(begin=texts["THINK"], end=texts["ANSWER"]))


def chat_of(source: str) -> ChatTemplates:
    return ChatTemplates(source, None, names=ControlNames(()), tokens=TOKENS, variables={})


def found_in(source: str) -> ChatFormat:
    return chat_format(chat_of(source).for_tools, frozenset())


class Counting(ChatTemplate):
    """A template that counts its renderings."""

    def __init__(self, source: str) -> None:
        self.n_renderings = 0
        super().__init__(source, ControlNames(()), TOKENS, {})
        self.n_renderings = 0

    def in_forms(self, messages: list[Message], forms: Forms, tools: Json, *, is_open: bool = True) -> str:
        self.n_renderings += 1
        return super().in_forms(messages, forms, tools, is_open=is_open)


def without_space(calls: CallFormat) -> dict[str, object]:
    """The fields of a format. White space between markers belongs to one as well as to the other."""
    fields = {name: getattr(calls, name) for name in calls.__struct_fields__}
    return {name: value.strip() if isinstance(value, str) else value for name, value in fields.items()}


@LAW
@given(made())
def test_unknown_markers_are_found(one: Made) -> None:
    assert declared(one.source) is None
    counting = Counting(one.source)
    found = chat_format(counting, frozenset())
    assert counting.n_renderings <= MAX_RENDERINGS
    assert found.source == "template"
    assert found.reasoning == one.reasoning
    assert found.calls is not None
    assert without_space(found.calls) == without_space(one.calls)


KEYS = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=6)
VALUES = st.one_of(st.text("ab <>/[]{}|\"'\\\né", max_size=12), st.integers(-999, 999), st.booleans())


@LAW
@given(
    made(), st.lists(st.dictionaries(KEYS, VALUES, max_size=4), min_size=1, max_size=3), st.text("ab\n ", max_size=6)
)
def test_what_such_a_template_writes_is_read_as_what_it_was_given(
    one: Made, arguments: list[dict[str, object]], said: str
) -> None:
    answer = Answer("Hm. " + said.strip() + ".", "So.", tuple((f"tool_{n}", each) for n, each in enumerate(arguments)))
    chat, form = chat_of(one.source), found_in(one.source)
    tools = [_tool(name, each) for name, each in answer.calls]
    prompt = chat.for_tools.in_forms(
        [{"role": "user", "content": "Go."}, answer.message()],
        chat.for_tools.forms_with,
        cast(Json, tools),
        is_open=False,
    )
    text = prompt.partition(ASSISTANT_TURN)[2].removesuffix(TURN_END)
    assert read(form, text, is_reasoning=False, tools=tools) == answer


def _tool(name: str, arguments: dict[str, object]) -> Message:
    kinds = {str: "string", int: "integer", bool: "boolean"}
    properties: Json = {key: {"type": kinds[type(value)]} for key, value in arguments.items()}
    return {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}


def test_an_object_inside_an_object_is_text_around_the_name_and_the_arguments() -> None:
    found = found_in(
        "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
        "<call>{{ {'function': {'name': c.function.name, 'arguments': c.function.arguments}} | tojson }}</call>"
        "{% endfor %}{% endfor %}"
    )
    assert found.calls == CallFormat(
        form="named",
        call_begin='<call>{"function": {"name": "',
        name_end='", "arguments": ',
        call_end="}}</call>",
    )


SILENT = [
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}",
    "{% for m in messages %}{{ m.content }}{% endfor %}",
    "{% for m in messages %}{% if m.tool_calls %}{{ raise_exception('No') }}{% endif %}{{ m.content }}{% endfor %}",
]


@pytest.mark.parametrize("source", SILENT)
def test_a_template_without_calls_has_the_form_in_which_the_worker_writes_them(source: str) -> None:
    assert found_in(source) == HERMES


DOUBTFUL = {
    "a marker has the name": "<call {{ c.function.name }}>{{ c.function.name }}{{ c.function.arguments | tojson }}",
    "no marker": "{{ c.function.name }}{{ c.function.arguments | tojson }}",
    "the arguments come first": "<call>{{ c.function.arguments | tojson }}{{ c.function.name }}</call>",
    "signs of JSON": "{{ '{' * 5000 }}{{ c.function.name }}{{ c.function.arguments | tojson }}",
    "open lists": "{{ '{\"a\":[' * 3000 }}{{ c.function.name }}{{ c.function.arguments | tojson }}",
    "far too much": "<call>{{ c.function.name }}{{ 'x' * 30000 }}{{ c.function.arguments | tojson }}</call>",
}


@pytest.mark.parametrize("call", DOUBTFUL.values(), ids=DOUBTFUL.keys())
def test_calls_that_cannot_be_understood_have_the_general_form(call: str) -> None:
    source = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
        + call
        + "{% endfor %}{% endfor %}"
    )
    assert found_in(source) == HERMES


@pytest.mark.parametrize("name", sorted(SOURCES.keys() - END_THE_PROCESS))
def test_a_template_that_means_harm_when_it_sees_a_call_only_loses_its_format(name: str) -> None:
    """tests/formats/test_sandbox.py has those that end a process."""
    source = "{% if messages[-1].tool_calls %}" + SOURCES[name] + "{% endif %}" + SAYS
    try:
        chat = chat_of(source)
    except BrokenTemplate:
        return
    assert chat_format(chat.for_tools, ENDS).calls == HERMES.calls


@pytest.mark.model
@pytest.mark.parametrize("path", templates(), ids=lambda path: path.stem)
def test_the_number_of_renderings_is_bounded(path: Path) -> None:
    if loaded(path.read_text()) is not None:
        counting = Counting(path.read_text())
        chat_format(counting, ENDS)
        assert counting.n_renderings <= MAX_RENDERINGS
