"""`llorch-worker chat render` and `chat parse`: a line answers a line."""

import io
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gguf_files import GgufFile
from tests.llama.tiny import BOS, END, TOKENS, vocabulary, write_tiny
from worker.cli import run
from worker.commands.chat_lines import Lines, ParseLine

Capture = pytest.CaptureFixture[bytes]

HERMES = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}"
    "{% for c in m.tool_calls or [] %}{{ '<tool_call>\n' + (c.function | tojson) + '\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
THINKING = HERMES.replace(
    "(m.content or '')", "'<think>' + (m.reasoning_content or '') + '</think>' + (m.content or '')"
)
USER = {"role": "user", "content": "Hi"}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"properties": {"at": {"type": "string"}}}}}]
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "Nîmes"}}\n</tool_call>'
WORDS = "{% for m in messages %}{{ bos_token + m.content + eos_token }}{% endfor %}"


def answers(command: str, *lines: object, flags: tuple[str, ...] = (), capture: Capture) -> list[dict[str, Any]]:
    """The objects that the command answers with; a text is a line as it is."""
    sent = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    before = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(sent.encode()))
    try:
        assert run(["chat", command, *flags]) == 0
    finally:
        sys.stdin = before
    out, err = capture.readouterr()
    assert err == b""
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A model file with a vocabulary and a template, and no weights."""
    return GgufFile({"general.architecture": "llama", **vocabulary(), "tokenizer.chat_template": WORDS}).write(
        tmp_path / "words.gguf"
    )


BAD = [
    *("", "nonsense", "[]", "null", '{"messages": 1', "[" * 100_000, "\ufffd"),
    *({"template": 1}, {"template": "{% for"}, {"template": "x"}, {"template": None}, {"tools": 1}),
]
"""Texts that are no object, and members that replace those of a good line."""
BAD_FOR: dict[str, list[Any]] = {
    "render": [
        *({"messages": each} for each in (None, 1, [], [1], [{"role": "nobody", "content": "a"}])),
        *({"kwargs": 1}, {"add_generation_prompt": "no"}),
    ],
    "parse": [
        *({"text": None}, {"chunks": ["a"]}, {"token_ids": [1]}, {"text": None, "token_ids": [1]}, {"prompt": 1}),
        *({"tools": [{"function": 1}]}, {"tools": [{}]}, {"text": None, "chunks": [1]}),
    ],
}


@pytest.mark.parametrize("command", ["render", "parse"])
def test_a_bad_line_is_an_error_and_the_next_goes_on(command: str, capsysbinary: Capture) -> None:
    good = {"template": HERMES} | ({"messages": [USER]} if command == "render" else {"text": "a"})
    bad = [good | each if isinstance(each, dict) else each for each in (*BAD, *BAD_FOR[command])]
    found = answers(command, *(line for each in bad for line in (each, good)), capture=capsysbinary)
    assert [set(each) for each in found[::2]] == [{"error"}] * len(bad)
    assert found[1::2] == [found[1]] * len(bad)
    assert "error" not in found[1]


@pytest.mark.parametrize("command", ["render", "parse"])
def test_an_option_before_the_command_is_refused(command: str, capsysbinary: Capture) -> None:
    assert run(["chat", "--temperature", "0", command]) == 2
    assert b"put the options after it" in capsysbinary.readouterr().err


def test_a_model_that_is_not_here_is_one_error_for_all_lines(capsysbinary: Capture) -> None:
    assert run(["chat", "render", "--model", "/nowhere.gguf"]) == 1
    assert capsysbinary.readouterr().err.count(b"\n") == 1


def test_a_conversation_becomes_the_prompt_of_its_template(capsysbinary: Capture) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at": "Nîmes"}'}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    asked = {"template": HERMES, "messages": [USER, said]}
    closed, begun = answers("render", asked | {"add_generation_prompt": False}, asked, capture=capsysbinary)
    assert closed["prompt"] == f"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n{CALL}<|im_end|>\n"
    assert begun["prompt"] == closed["prompt"] + "<|im_start|>assistant\n"


def test_variables_and_the_names_of_tokens_come_from_kwargs(capsysbinary: Capture) -> None:
    template = "{{ bos_token }}{{ messages[0].content }}{{ mood }}"
    asked = {"template": template, "messages": [USER], "kwargs": {"mood": "!", "bos_token": "<b>"}}
    assert answers("render", asked, capture=capsysbinary) == [{"prompt": "<b>Hi!"}]


def test_variables_that_the_template_does_not_read_are_ignored_and_named(capsysbinary: Capture) -> None:
    asked = {"template": HERMES, "messages": [USER]}
    (plain,) = answers("render", asked, capture=capsysbinary)
    more = asked | {"kwargs": {"mood": 1, "messages": []}, "colour": 1}
    (found,) = answers("render", more, capture=capsysbinary)
    assert found == plain | {"ignored": ["colour", "kwargs.messages", "kwargs.mood"]}


def test_a_file_without_weights_gives_template_and_vocabulary(words: Path, capsysbinary: Capture) -> None:
    own, other = {"messages": [USER]}, {"messages": [USER], "template": "{{ messages[0].content }}{{ eos_token }}"}
    found = answers("render", own, other, flags=("--model", str(words)), capture=capsysbinary)
    assert found == [{"prompt": "<s>Hi</s>"}, {"prompt": "Hi</s>"}]


def test_a_model_without_a_template_needs_one_in_the_line(tmp_path: Path, capsysbinary: Capture) -> None:
    flags = ("--model", str(write_tiny(tmp_path / "tiny.gguf")))
    lines = ({"messages": [USER]}, {"messages": [USER], "template": WORDS})
    none, given = answers("render", *lines, flags=flags, capture=capsysbinary)
    assert "no chat template" in none["error"]
    assert given == {"prompt": "<s>Hi</s>"}


@pytest.mark.parametrize("end", range(CALL.index("at"), CALL.index("}}")))
def test_a_call_that_is_cut_is_none_and_the_one_before_it_stays(end: int, capsysbinary: Capture) -> None:
    asked = {"template": HERMES, "tools": TOOLS}
    alone, second = answers(
        "parse", asked | {"text": CALL[:end]}, asked | {"chunks": [CALL, CALL[:end]]}, capture=capsysbinary
    )
    assert alone["message"] == {"role": "assistant", "content": ""}
    (call,) = second["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"at": "Nîmes"}


def test_an_answer_becomes_a_message_with_its_calls_if_there_are_tools(capsysbinary: Capture) -> None:
    asked = {"template": HERMES, "tools": TOOLS}
    lines = (asked | {"text": f"I look.\n{CALL}\n{CALL}"}, asked | {"text": CALL}, {"template": HERMES, "text": CALL})
    two, alone, content = [found["message"] for found in answers("parse", *lines, capture=capsysbinary)]
    function = {"name": "look", "arguments": '{"at": "Nîmes"}'}
    calls = [{"id": f"call0000{n}", "type": "function", "function": function} for n in (0, 1)]
    assert two == {"role": "assistant", "content": "I look.", "tool_calls": calls}
    assert alone["content"] is None
    assert content == {"role": "assistant", "content": CALL}


def test_the_prompt_says_where_an_answer_begins(capsysbinary: Capture) -> None:
    asked = {"template": THINKING, "text": "Hm.</think>Yes."}
    lines = (asked | {"prompt": "Hi<think>\n"}, asked | {"prompt": "Hi<think></think>"}, asked)
    inside, after, unknown = answers("parse", *lines, capture=capsysbinary)
    assert inside["message"] == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    assert "reasoning_content" not in after["message"]
    assert unknown == after


def summed(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that deltas add up to."""
    content = "".join(delta.get("content", "") for delta in deltas)
    reasoning = "".join(delta.get("reasoning_content", "") for delta in deltas)
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        for part in delta.get("tool_calls", ()):
            if "id" in part:
                calls.append({key: value for key, value in part.items() if key != "index"})
            else:
                function = calls[part["index"]]["function"]
                function["arguments"] += part["function"]["arguments"]
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else "")}
    message |= {"reasoning_content": reasoning} if reasoning else {}
    return message | ({"tool_calls": calls} if calls else {})


PIECES = ["I look.", "\n", CALL, "<think>", "Hm.", "</think>", "<tool_", "é🐈", "{", "```json\n", "```"]


@settings(max_examples=100)
@given(st.lists(st.sampled_from(PIECES), max_size=5).map("".join), st.lists(st.integers(0, 80), max_size=8))
def test_any_chunks_of_a_text_give_its_message_and_deltas_that_add_up(text: str, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    chunks = [text[begin:end] for begin, end in pairwise(places)]
    lines = Lines(None, Path(), None)
    whole = lines.parsed(ParseLine(template=THINKING, tools=TOOLS, text=text))
    cut = lines.parsed(ParseLine(template=THINKING, tools=TOOLS, chunks=chunks))
    assert whole["message"] == cut["message"] == summed(whole["deltas"]) == summed(cut["deltas"])


def test_members_that_are_not_read_are_named(capsysbinary: Capture) -> None:
    lines = ({"template": HERMES, "text": "a", "id": 7, "b": 1}, {"template": HERMES, "text": "a"})
    more, none = answers("parse", *lines, capture=capsysbinary)
    assert (more["ignored"], more.keys() - none.keys()) == (["b", "id"], {"ignored"})


def test_tokens_are_the_text_of_the_vocabulary_up_to_the_end(words: Path, capsysbinary: Capture) -> None:
    a, space = TOKENS.index("a"), TOKENS.index("▁")
    lines = [{"token_ids": ids} for ids in ([a, space, a], [a, BOS, a], [a, END, a], [a, len(TOKENS)], [-1], [])]
    found = answers("parse", *lines, flags=("--model", str(words)), capture=capsysbinary)
    contents = [each["message"]["content"] for each in found if "message" in each]
    assert contents == ["a a", "aa", "a", ""]
    assert [f"0 to {len(TOKENS) - 1}" in each["error"] for each in found if "error" in each] == [True, True]


def test_control_tokens_of_the_format_stay(tmp_path: Path, capsysbinary: Capture) -> None:
    """The vocabulary's `<s>` begins a call here."""
    template = (
        "{% for m in messages %}{{ '[' + m.role + ']' + (m.content or '') }}{% for c in m.tool_calls or [] %}"
        "{{ '<s>' + (c.function | tojson) + '<unk>' }}{% endfor %}{% endfor %}"
    )
    characters = sorted(set('{"name": "look", "arguments": {}}') - set("a "))
    path = write_tiny(tmp_path / "tiny.gguf", chat_template=template, characters="".join(characters))
    ids = {text: len(TOKENS) + n for n, text in enumerate(characters)}
    ids |= {"a": TOKENS.index("a"), " ": TOKENS.index("▁")}
    answer = [BOS, *(ids[sign] for sign in '{"name": "look", "arguments": {}}'), END]
    line = {"token_ids": answer, "tools": TOOLS}
    (found,) = answers("parse", line, flags=("--model", str(path)), capture=capsysbinary)
    assert [call["function"] for call in found["message"]["tool_calls"]] == [{"name": "look", "arguments": "{}"}]
