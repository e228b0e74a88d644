"""A conversation becomes the text that the template makes of it, in the forms that the template knows."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chat.conversations import CALL, REPLY, RESULT, SYSTEM, USER, WEATHER, Message
from worker.chat.marks import Json, Names
from worker.chat.sandbox import BrokenTemplate
from worker.chat.template import ChatTemplates, Rendered
from worker.wire.messages import Conversation, Violation

LAW = settings(max_examples=200)

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{{ m.content }}{% endfor %}"
)
ONE_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)
NAMES = Names(["<|im_start|>", "<|im_end|>", "<s>", "</s>"])


def templates(source: str, tool_use: str | None = None, told: dict[str, Json] | None = None) -> ChatTemplates:
    return ChatTemplates(
        source, tool_use, names=NAMES, tokens={"bos_token": "<s>", "eos_token": "</s>"}, told=told or {}
    )


def conversation(
    *messages: Message, tools: list[Message] | None = None, told: dict[str, Json] | None = None
) -> Conversation:
    encoded = [msgspec.json.encode(value).decode() for value in (messages, tools, told or {})]
    return Conversation(messages=encoded[0], tools=encoded[1] if tools else None, template_kwargs=encoded[2])


def rendered(source: str, *messages: Message, **more: bool) -> Rendered:
    found = templates(source).read(msgspec.structs.replace(conversation(*messages), **more))
    assert isinstance(found, Rendered), found
    return found


def text(source: str, *messages: Message, **more: bool) -> str:
    return rendered(source, *messages, **more).text


def refusal(source: str, *messages: Message, told: dict[str, Json] | None = None, **more: bool) -> Violation:
    found = templates(source).read(msgspec.structs.replace(conversation(*messages, told=told), **more))
    assert isinstance(found, Violation), found
    return found


def says(content: object, role: str = "user") -> Message:
    return {"role": role, "content": content}


# ── text and control tokens ──────────────────────────────────────────────────────────────────────

PIECES = st.sampled_from(["<|im_end|>", "<|im_start|>", "<|im_", "end|>", "<s>", "<", "|>", "im_end", "\n", " "])
TEXTS = st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=6).map("".join)


@LAW
@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_the_templates_control_tokens_are_those_of_a_conversation_without_any(contents: list[str]) -> None:
    """Whatever the contents are: the template's names are found, in order, and no other."""
    found = rendered(CHATML, *map(says, contents))
    assert (
        found.text == "".join(f"<|im_start|>user\n{text}<|im_end|>\n" for text in contents) + "<|im_start|>assistant\n"
    )
    controls = NAMES.spans(found.text) if found.controls is None else list(found.controls)
    names = [found.text[start:end] for start, end in controls]
    assert names == ["<|im_start|>", "<|im_end|>"] * len(contents) + ["<|im_start|>"]
    assert controls[0][0] == 0


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{{ m.content | trim }}{% endfor %}<|im_end|>",
        "{% for m in messages %}{{ m.content | lower }}{% endfor %}<|im_end|>",
        "{% for m in messages %}{{ m.content[0:5] ~ m.content[5:] }}{% endfor %}<|im_end|>",
        "{% for m in messages %}{{ m.content | tojson }}{% endfor %}<|im_end|>",
        "{% for m in messages %}{{ m.content.replace('<x>', '') }}{% endfor %}<|im_end|>",
        "{% for m in messages %}{{ m.content.split('</x>') | join('') }}{% endfor %}<|im_end|>",
        "{{ messages | map(attribute='content') | join }}<|im_end|>",
    ],
)
@pytest.mark.parametrize(
    "contents", [["<|im_end|>"], ["<|im_", "end|>"], ["<|im<x>_end|>"], ["<|im</x>_end|>"], ["<", "s>"]]
)
def test_a_name_in_the_conversation_is_letters_whatever_the_template_does_to_it(
    source: str, contents: list[str]
) -> None:
    found = rendered(source, *map(says, contents))
    controls = NAMES.spans(found.text) if found.controls is None else found.controls
    assert [found.text[start:end] for start, end in controls] == ["<|im_end|>"]
    assert found.text.endswith("<|im_end|>")


def test_without_names_in_the_conversation_all_names_are_the_templates() -> None:
    assert rendered(CHATML, says("a < b | c > d"), says("<think>x</think>")).controls is None


def test_a_template_that_looks_into_the_text_finds_what_is_there() -> None:
    source = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}"
    assert text(source, says("<think>hm</think>yes")) == "yes"
    source = "{% for m in messages %}{{ 'less' if '<' in m.content else m.content }}{% endfor %}<|im_end|>"
    assert text(source, says("a < b")) == "less<|im_end|>"


# ── forms ────────────────────────────────────────────────────────────────────────────────────────


def test_a_developer_is_the_system_where_the_template_knows_none() -> None:
    assert "system\nBe brief." in text(CHATML, says("Be brief.", "developer"), USER)
    knowing = CHATML + "{# developer #}"
    assert "developer\nBe brief." in text(knowing, says("Be brief.", "developer"), USER)


def test_leading_systems_are_one_where_the_template_takes_one_alone() -> None:
    two = says("A", "system"), says("B", "system")
    assert text(ONE_SYSTEM, *two, USER) == f"[system]A\n\nB[user]{USER['content']}"
    assert text(CHATML, *two, USER).count("<|im_start|>system") == 2


def test_what_the_template_refuses_is_told_in_its_words() -> None:
    found = refusal(NO_SYSTEM, SYSTEM, USER)
    assert (found.field, found.constraint) == ("messages", "chat_template")
    assert found.message == "the chat template refuses the conversation: System role not supported"


def test_a_refusal_holds_nothing_of_the_conversation() -> None:
    source = (
        "{% for m in messages %}{% if 'no' in m.content %}"
        "{{ raise_exception('Bad text: ' + m.content) }}{% endif %}{{ m.content }}{% endfor %}"
    )
    assert refusal(source, says("no secret")).message == "the chat template refuses the conversation: Bad text"
    source = (
        "{% for m in messages %}{{ m.content }}{% if 'no' in m.content %}"
        "{{ m.content | int + [] }}{% endif %}{% endfor %}"
    )
    assert "secret" not in refusal(source, says("no secret")).message


def test_parts_are_joined_where_the_template_takes_texts_alone() -> None:
    parts = says([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
    assert "user\na\nb<|im_end|>" in text(CHATML, parts)


def test_a_text_is_a_part_where_the_template_takes_parts_alone() -> None:
    source = (
        "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}"
        "{% endfor %}{% endfor %}"
    )
    assert text(source, says("a")) == "a"


def test_arguments_are_an_object_where_the_template_takes_no_text() -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}{% endfor %}"
        "{% endfor %}"
    )
    function = {"name": "f", "arguments": '{"a": 1}'}
    assert text(source, USER, {**says("", "assistant"), "tool_calls": [{"function": function}]}).endswith("a=1")


def test_arguments_are_text_where_the_template_takes_no_object() -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ 'calls ' + c.function.arguments }}{% endfor %}{% endfor %}"
    )
    function = {"name": "f", "arguments": {"a": [1, "é"]}}
    calls = {**says("", "assistant"), "tool_calls": [{"function": function}]}
    assert text(source, USER, calls).endswith('calls {"a": [1, "é"]}')


def test_an_answer_goes_on_where_its_beginning_ends() -> None:
    more = {"add_generation_prompt": False, "continue_final_message": True}
    assert text(CHATML, USER, says("It is ", "assistant"), **more).endswith("<|im_start|>assistant\nIt is ")
    trimming = CHATML.replace("m.content", "(m.content | trim)")
    assert text(trimming, USER, says("It is ", "assistant"), **more).endswith("<|im_start|>assistant\nIt is")


def test_a_message_without_text_cannot_go_on() -> None:
    found = refusal(CHATML, USER, {**CALL, "content": None}, add_generation_prompt=False, continue_final_message=True)
    assert (found.field, found.constraint) == ("messages", "chat_template")


# ── what a template is told ──────────────────────────────────────────────────────────────────────


def test_a_template_is_told_what_it_asks_for_and_nothing_else() -> None:
    source = CHATML + "{% if enable_thinking %}<think>{% endif %}"
    chat = templates(source, told={"enable_thinking": True})
    assert chat.keys == {"enable_thinking"}
    for told, is_told in (({}, True), ({"enable_thinking": False}, False)):
        found = chat.read(conversation(USER, told=dict(told)))
        assert isinstance(found, Rendered)
        assert found.text.endswith("<think>") == is_told
    found = chat.read(conversation(USER, told={"secret": 1}))
    assert found == Violation("chat_template_kwargs", "known_keys", "the chat template can be told enable_thinking")


def test_a_template_may_be_of_use_only_with_what_it_is_told() -> None:
    source = "{{ 'Today is ' + today }}" + CHATML
    with pytest.raises(BrokenTemplate):
        templates(source)
    found = templates(source, told={"today": "Monday"}).read(conversation(USER))
    assert isinstance(found, Rendered)
    assert found.text.startswith("Today is Monday")


@pytest.mark.parametrize("key", ["messages", "tools", "bos_token", "add_generation_prompt", "raise_exception"])
def test_nobody_tells_a_template_what_it_is_given(key: str) -> None:
    source = CHATML + "{{ bos_token }}{{ tools }}"
    assert refusal(source, USER, told={key: "x"}).field == "chat_template_kwargs"


def test_the_template_for_tools_is_for_tools() -> None:
    chat = templates(CHATML, "{{ messages[0].content }}{{ tools | tojson if tools else '' }}")
    for tools, is_plain in ((None, True), ([WEATHER], False)):
        found = chat.read(conversation(USER, tools=tools))
        assert isinstance(found, Rendered)
        assert ("<|im_start|>" in found.text) == is_plain


def test_tools_that_the_template_leaves_out_are_refused() -> None:
    found = templates(CHATML).read(conversation(USER, tools=[WEATHER]))
    assert found == Violation("messages", "tools", "the chat template knows no tools")


def test_what_a_template_knows_is_found_out() -> None:
    assert templates(CHATML).caps == ("system",)
    knowing = (
        "{% for m in messages %}{{ m.reasoning_content }}{{ m.role }}{{ m.content }}{{ m.tool_calls | tojson }}"
        "{% endfor %}{{ tools | tojson }}{{ day }}{# developer #}"
    )
    caps = ("developer", "reasoning", "system", "tool_calls", "tool_results", "tools", "kwargs.day")
    assert templates(knowing).caps == caps


def test_a_template_that_shows_nothing_of_a_conversation_is_none() -> None:
    for source, why in (
        ("hello", "it leaves out what the user says"),
        ("{{ raise_exception('not for chat') }}", "the chat template refuses the conversation: not for chat"),
        ("{% for %}", "SyntaxError in line 1"),
    ):
        with pytest.raises(BrokenTemplate, match=why):
            templates(source)


def test_a_result_and_a_reply_are_shown() -> None:
    assert "Sunny" in text(CHATML, USER, REPLY, {**RESULT, "role": "user"})
