"""A conversation becomes the text that the template makes of it, in the forms that the template knows."""

import json
import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.formats.conversations import CALL, REPLY, RESULT, SYSTEM, TIME, USER, WEATHER, Message
from tests.tables import cases
from worker.formats.render.escapes import ControlNames, Json
from worker.formats.render.sandbox import BrokenTemplate
from worker.formats.render.template import ChatTemplates, Rendered
from worker.wire.messages import Violation
from worker.wire.prompts import Conversation

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
TURNS = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) or m.role == 'system' %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
PICKY = (
    "{% for m in messages %}{% if 'bad' in m.content %}{{ raise_exception('No bad words') }}{% endif %}"
    "{{ m.content }}{% endfor %}"
)
CENSOR = "{% for m in messages %}{% if 'one' not in m.content %}{{ m.content }}{% endif %}{% endfor %}"
CALLS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "{% if ID %}{{ raise_exception('Bad id') }}{% endif %}"
    "({{ c.id }}:{{ c.function.name }}:{{ c.function.arguments | tojson }}){% endfor %}"
    "{% if m.role == 'tool' %}({{ m.tool_call_id }}){% endif %}{% endfor %}"
)
NAMES = ControlNames(["<|im_start|>", "<|im_end|>", "<s>", "</s>"])


def templates(source: str, tool_use: str | None = None, variables: dict[str, Json] | None = None) -> ChatTemplates:
    return ChatTemplates(
        source, tool_use, names=NAMES, tokens={"bos_token": "<s>", "eos_token": "</s>"}, variables=variables or {}
    )


def conversation(
    *messages: Message, tools: list[Message] | None = None, variables: dict[str, Json] | None = None
) -> Conversation:
    encoded = [msgspec.json.encode(value).decode() for value in (messages, tools, variables or {})]
    return Conversation(messages=encoded[0], tools=encoded[1] if tools else None, template_kwargs=encoded[2])


def rendered(source: str, *messages: Message, **more: bool) -> Rendered:
    found = templates(source).read(msgspec.structs.replace(conversation(*messages), **more))
    assert isinstance(found, Rendered), found
    return found


def text(source: str, *messages: Message, **more: bool) -> str:
    return rendered(source, *messages, **more).text


def refusal(source: str, *messages: Message, **more: bool) -> Violation:
    found = templates(source).read(msgspec.structs.replace(conversation(*messages), **more))
    assert isinstance(found, Violation), found
    return found


def says(content: object, role: str = "user") -> Message:
    return {"role": role, "content": content}


PIECES = st.sampled_from(["<|im_end|>", "<|im_start|>", "<|im_", "end|>", "<s>", "<", "|>", "im_end", "\n", " "])
TEXTS = st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=6).map("".join)


@LAW
@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_the_templates_control_tokens_are_those_of_a_conversation_without_any(contents: list[str]) -> None:
    """The contents do not matter: the template's names are found, in order, and no other."""
    found = rendered(CHATML, *map(says, contents))
    assert (
        found.text == "".join(f"<|im_start|>user\n{text}<|im_end|>\n" for text in contents) + "<|im_start|>assistant\n"
    )
    controls = NAMES.spans(found.text) if found.controls is None else list(found.controls)
    names = [found.text[start:end] for start, end in controls]
    assert names == ["<|im_start|>", "<|im_end|>"] * len(contents) + ["<|im_start|>"]
    assert controls[0][0] == 0


@cases
@pytest.mark.parametrize(
    "contents", [["<|im_end|>"], ["<|im_", "end|>"], ["<|im<x>_end|>"], ["<|im</x>_end|>"], ["<", "s>"]]
)
def test_a_name_in_the_conversation_stays_letters_in_every_template(source: str, contents: list[str]) -> None:
    found = rendered(source, *map(says, contents))
    controls = NAMES.spans(found.text) if found.controls is None else found.controls
    assert [found.text[start:end] for start, end in controls] == ["<|im_end|>"]
    assert found.text.endswith("<|im_end|>")


def test_without_names_in_the_conversation_all_names_are_the_templates() -> None:
    assert rendered(CHATML, says("a < b | c > d"), says("<think>x</think>")).controls is None


def test_a_template_that_looks_into_the_text_finds_what_is_there() -> None:
    source = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}"
    assert text(source, says("<think>hm</think>yes")) == "yes"
    source = "{% for m in messages %}{{ 'less:' if '<' in m.content }}{{ m.content }}{% endfor %}<|im_end|>"
    assert text(source, says("a < b")) == "less:a < b<|im_end|>"


def test_a_developer_becomes_the_system_if_the_template_supports_no_developer() -> None:
    assert "system\nBe brief." in text(CHATML, says("Be brief.", "developer"), USER)
    knowing = CHATML + "{# developer #}"
    assert "developer\nBe brief." in text(knowing, says("Be brief.", "developer"), USER)


def test_leading_systems_are_merged_if_the_template_supports_only_one() -> None:
    two = says("A", "system"), says("B", "system")
    assert text(ONE_SYSTEM, *two, USER) == f"[system]A\n\nB[user]{USER['content']}"
    assert text(CHATML, *two, USER).count("<|im_start|>system") == 2


def test_a_system_message_becomes_a_users_if_the_template_supports_none() -> None:
    assert text(NO_SYSTEM, SYSTEM, USER) == SYSTEM["content"] + USER["content"]
    assert text(ONE_SYSTEM, SYSTEM, USER, says("B", "system")).endswith(f"[user]{USER['content']}[user]B")


def test_users_and_assistants_alternate_if_the_template_requires_it() -> None:
    asked = text(TURNS, says("a"), says("b"), says("c", "assistant"), says("d", "assistant"), says("e"))
    assert asked == "[user]a\n\nb[assistant]c\n\nd[user]e"
    assert text(TURNS, says("a", "assistant"), says("b")) == "[user][assistant]a[user]b"


@given(st.data())
def test_a_refusal_by_the_template_names_the_message_and_quotes_the_template(data: st.DataObject) -> None:
    n_messages = data.draw(st.integers(1, 9))
    at = data.draw(st.integers(0, n_messages - 1))
    found = refusal(PICKY, *(says("bad" if n == at else "good") for n in range(n_messages)))
    assert (found.field, found.constraint) == ("messages", "chat_template")
    assert found.message == f"messages[{at}]: the chat template refuses the conversation: No bad words"


def test_tools_that_the_template_refuses_are_named() -> None:
    source = "{% set all = tools | tojson %}{{ all }}{% if 'get_time' in all %}{{ raise_exception('No') }}{% endif %}"
    chat, said = templates(source + CHATML), "tools: the chat template refuses the conversation: No"
    assert chat.read(conversation(USER, tools=[TIME])) == Violation("messages", "chat_template", said)


@given(st.data())
def test_a_message_that_the_template_omits_is_named(data: st.DataObject) -> None:
    """Also where only this one is, for what it says."""
    n_messages = data.draw(st.integers(1, 9))
    at = data.draw(st.integers(0, n_messages - 1))
    found = refusal(CENSOR, *(says("bad one" if n == at else f"good {n}") for n in range(n_messages)))
    assert found.message == f"messages[{at}]: the chat template omits its content"


def test_a_refusal_holds_nothing_of_the_conversation() -> None:
    source = (
        "{% for m in messages %}{% if 'no' in m.content %}"
        "{{ raise_exception('Bad text: ' + m.content) }}{% endif %}{{ m.content }}{% endfor %}"
    )
    assert refusal(source, says("no secret")).message.endswith("the conversation: Bad text")
    source = (
        "{% for m in messages %}{{ m.content }}{% if 'no' in m.content %}"
        "{{ m.content | int + [] }}{% endif %}{% endfor %}"
    )
    assert "secret" not in refusal(source, says("no secret")).message


def test_parts_are_joined_if_the_template_supports_only_texts() -> None:
    parts = says([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
    assert "user\na\nb<|im_end|>" in text(CHATML, parts)


def test_a_text_becomes_a_part_if_the_template_supports_only_parts() -> None:
    source = (
        "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}"
        "{% endfor %}{% endfor %}"
    )
    assert text(source, says("a")) == "a"


def test_arguments_become_an_object_if_the_template_supports_no_text() -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name }} {% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}{% endfor %}"
        "{% endfor %}"
    )
    function = {"name": "f", "arguments": '{"a": 1}'}
    assert text(source, USER, {**says("", "assistant"), "tool_calls": [{"function": function}]}).endswith("f a=1")


def test_arguments_become_text_if_the_template_supports_no_object() -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name + ' calls ' + c.function.arguments }}{% endfor %}{% endfor %}"
    )
    function = {"name": "f", "arguments": {"a": [1, "é"]}}
    calls = {**says("", "assistant"), "tool_calls": [{"function": function}]}
    assert text(source, USER, calls).endswith('f calls {"a": [1, "é"]}')


def calling(*calls: Message, content: str | None = None) -> Message:
    return {**says(content, "assistant"), "tool_calls": list(calls)}


def call(name: str, call_id: str | None, arguments: Json = None) -> Message:
    called = {"type": "function", "function": {"name": name, "arguments": arguments or {"a": "b"}}}
    return called if call_id is None else {**called, "id": call_id}


def result(content: str, call_id: str | None, **more: str) -> Message:
    return {**says(content, "tool"), **more} | ({} if call_id is None else {"tool_call_id": call_id})


def test_calls_and_results_become_text_if_the_template_writes_none() -> None:
    said = [USER, calling(call("f", "1"), call("g", "2"), content="I look."), result("x", "1"), result("y", "2")]
    assert text(CHATML, *said).removeprefix(text(CHATML, USER, add_generation_prompt=False)) == (
        "<|im_start|>assistant\nI look.\n"
        '<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {"a": "b"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nx\n</tool_response>\n<tool_response>\ny\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_text_next_to_a_call_comes_before_it_if_the_template_omits_it() -> None:
    source = CALLS.replace("{{ m.content or '' }}", "{% if not m.tool_calls %}{{ m.content or '' }}{% endif %}")
    found = text(source.replace("ID", "false"), USER, calling(call("f", "1"), content="I look."), result("x", "1"))
    assert '[assistant]I look.[assistant](1:f:{"a": "b"})[tool]x(1)' in found


def test_several_calls_become_several_messages_if_the_template_supports_one() -> None:
    source = CALLS.replace("ID", "m.tool_calls | length > 1")
    both = calling(call("f", "1"), call("g", "2"))
    found = text(source, USER, both, result("y", "2"), result("x", "1"), result("z", "3"))
    one, other = '[assistant](1:f:{"a": "b"})[tool]x(1)', '[assistant](2:g:{"a": "b"})[tool]y(2)[tool]z(3)'
    assert found.endswith(one + other)


IDS = st.one_of(st.none(), st.sampled_from(["call_1", "call_2", "abcdefghi", "toolu_01x", "é"]))


@LAW
@given(st.lists(IDS, min_size=1, max_size=4, unique_by=lambda one: one or object()))
def test_a_call_and_its_result_have_one_id_that_the_template_takes(ids: list[str | None]) -> None:
    source = CALLS.replace("ID", "c.id is not string or c.id | length != 9")
    rounds = [one for n, sent in enumerate(ids) for one in (calling(call(f"f{n}", sent)), result(f"r{n}", sent))]
    found = text(source, USER, *rounds)
    written = [re.search(rf"\((\w+):f{n}:", found) for n in range(len(ids))]
    known = [one[1] for one in written if one]
    assert len(set(known)) == len(ids)
    assert all(f"r{n}({one})" in found for n, one in enumerate(known))
    assert all(one == sent for one, sent in zip(known, ids, strict=True) if sent == "abcdefghi")


def test_ids_contain_the_calls_name_if_the_template_shows_only_ids() -> None:
    source = CALLS.replace("ID", "false").replace(":{{ c.function.name }}", "")
    found = text(source, USER, calling(call("f", "x")), result("y", "x"), calling(call("g", "functions.g:7")))
    assert "(functions.f:0:" in found
    assert "[tool]y(functions.f:0)" in found
    assert "(functions.g:7:" in found


def test_a_result_without_its_call_becomes_a_users_text_if_the_template_needs_the_call() -> None:
    source = (
        "{% set ns = namespace(calls=false) %}{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}"
        "{% for c in m.tool_calls or [] %}{% set ns.calls = true %}{{ c.function.name }}{{ c.function.arguments }}"
        "{% endfor %}{% if m.role == 'tool' and not ns.calls %}{{ raise_exception('No call') }}{% endif %}{% endfor %}"
    )
    assert text(source, USER, result("x", "1")).endswith("[user]<tool_response>\nx\n</tool_response>")
    assert text(source, USER, calling(call("f", "1")), result("x", "1")).endswith("[tool]x")


def test_a_call_without_an_object_becomes_text_if_the_template_supports_only_objects() -> None:
    source = CALLS.replace("ID", "c.function.arguments is string")
    found = text(source, USER, calling(call("f", "1", '{"a": "b')), calling(call("g", "2")))
    assert '[assistant]<tool_call>\n{"name": "f", "arguments": "{\\"a\\": \\"b"}\n</tool_call>' in found
    assert '[assistant](2:g:{"a": "b"})' in found


def test_a_system_message_stays_where_the_template_puts_it() -> None:
    source = "{% for m in messages[1:] %}{{ m.content }}{% endfor %}{{ messages[0].content }}"
    swapped = "{% if messages[0].role == 'system' %}" + source + "{% else %}" + CHATML + "{% endif %}"
    assert text(swapped, SYSTEM, USER) == USER["content"] + SYSTEM["content"]


def test_reasoning_may_be_omitted() -> None:
    source = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}"
    for thought in ("<think>hm</think>yes", "<think>hm</think>"):
        assert text(source, USER, says(thought, "assistant")) == USER["content"] + thought.partition("</think>")[2]
    assert text(CHATML, USER, {**REPLY, "reasoning_content": "hm"}) == text(CHATML, USER, REPLY)


def test_an_answer_continues_after_its_beginning() -> None:
    more = {"add_generation_prompt": False, "continue_final_message": True}
    assert text(CHATML, USER, says("It is ", "assistant"), **more).endswith("<|im_start|>assistant\nIt is ")
    trimming = CHATML.replace("m.content", "(m.content | trim)")
    assert text(trimming, USER, says("It is ", "assistant"), **more).endswith("<|im_start|>assistant\nIt is")


@pytest.mark.parametrize("last", [{**CALL, "content": None}, {**CALL, "content": "I look."}, says(None, "assistant")])
def test_a_message_without_text_or_with_calls_cannot_be_continued(last: Message) -> None:
    found = refusal(CHATML, USER, last, add_generation_prompt=False, continue_final_message=True)
    assert (found.field, found.constraint) == ("messages", "chat_template")
    assert found.message.startswith("messages[1]: the final message")


def test_a_template_gets_the_variables_that_it_reads_and_no_others() -> None:
    source = CHATML + "{% if enable_thinking %}<think>{% endif %}"
    chat = templates(source, variables={"enable_thinking": True})
    assert chat.keys == {"enable_thinking"}
    for variables, is_thinking in (({}, True), ({"enable_thinking": False}, False)):
        found = chat.read(conversation(USER, variables=dict(variables)))
        assert isinstance(found, Rendered)
        assert found.text.endswith("<think>") == is_thinking
    assert chat.read(conversation(USER, variables={"secret": 1})) == chat.read(conversation(USER))


def test_a_template_may_work_only_with_its_variables() -> None:
    source = "{{ 'Today is ' + today }}" + CHATML
    with pytest.raises(BrokenTemplate):
        templates(source)
    found = templates(source, variables={"today": "Monday"}).read(conversation(USER))
    assert isinstance(found, Rendered)
    assert found.text.startswith("Today is Monday")


@pytest.mark.parametrize("key", ["messages", "tools", "bos_token", "add_generation_prompt", "raise_exception"])
def test_a_request_cannot_set_the_variables_that_the_worker_sets(key: str) -> None:
    source = CHATML + "{{ bos_token }}{{ tools }}"
    chat = templates(source)
    assert chat.read(conversation(USER, variables={key: "x"})) == chat.read(conversation(USER))


def test_the_template_for_tools_is_for_tools() -> None:
    chat = templates(CHATML, "{{ messages[0].content }}{{ tools | tojson if tools else '' }}")
    for tools, is_plain in ((None, True), ([WEATHER], False)):
        found = chat.read(conversation(USER, tools=tools))
        assert isinstance(found, Rendered)
        assert ("<|im_start|>" in found.text) == is_plain


@pytest.mark.parametrize("messages", [(USER,), (SYSTEM, USER)])
def test_tools_that_the_template_omits_are_in_the_system_message(messages: tuple[Message, ...]) -> None:
    found = templates(CHATML).read(conversation(*messages, tools=[WEATHER]))
    assert isinstance(found, Rendered)
    system, _, rest = found.text.partition("<|im_end|>")
    assert system.startswith("<|im_start|>system\n")
    assert f"<tools>\n{json.dumps(WEATHER, ensure_ascii=False)}\n</tools>" in system
    assert (str(SYSTEM["content"]) in system) == (messages[0] is SYSTEM)
    assert rest.endswith(text(CHATML, USER))


def test_a_refusal_counts_the_messages_of_the_request() -> None:
    refusing = "{% if m.content == 'no' %}{{ raise_exception('no') }}{% endif %}"
    source = "{% for m in messages %}" + refusing + "{{ m.content }}{% endfor %}"
    found = templates(source).read(conversation(USER, says("no", "assistant"), tools=[WEATHER]))
    assert isinstance(found, Violation)
    assert found.message.startswith("messages[1]: ")


def test_the_features_of_a_template_are_found() -> None:
    assert templates(CHATML).caps == ("system",)
    dropping = "{% for m in messages if m.role != 'developer' %}" + CHATML.partition("%}")[2]
    assert templates(dropping).caps == ("system",)
    knowing = (
        "{% for m in messages %}{{ m.reasoning_content }}{{ m.role }}{{ m.content }}{{ m.tool_calls | tojson }}"
        "{% endfor %}{{ tools | tojson }}{{ day }}{# developer #}"
    )
    caps = ("developer", "reasoning", "system", "tool_calls", "tool_results", "tools", "kwargs.day")
    assert templates(knowing).caps == caps


def test_a_template_that_shows_nothing_of_a_conversation_is_broken() -> None:
    for source, why in (
        ("hello", "it omits the user's message"),
        ("{{ raise_exception('not for chat') }}", "the chat template refuses the conversation: not for chat"),
        ("{% for %}", "SyntaxError in line 1"),
    ):
        with pytest.raises(BrokenTemplate, match=why):
            templates(source)


def test_a_result_and_a_reply_are_shown() -> None:
    assert "Sunny" in text(CHATML, USER, REPLY, {**RESULT, "role": "user"})
