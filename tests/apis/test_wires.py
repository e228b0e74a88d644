"""The laws of every wire's answers: a stream is legal at every moment, and says what the whole answer says."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.apis.asking import STOP, fail, finish, start, talk
from tests.apis.messages.asking import HELLO
from tests.apis.wires import (
    CHAT,
    INFILL,
    MESSAGES,
    READ,
    RESPONSES,
    TERMS,
    WIRES,
    Json,
    Told,
    Wire,
    events_of,
    folded_blocks,
    folded_items,
    loaded,
    pieces,
    text_of,
)
from tests.formats.writing import CALLING, Answer, answers, pieces_of, section, written
from worker.apis.core.parts import PartsChoice
from worker.apis.messages.answer import UNREADABLE
from worker.formats.read.parse import Arguments, CallBegun, Content, Delta, Reader, Thought, message_of
from worker.formats.tool_format import formats
from worker.wire.chat_format import ChatFormat
from worker.wire.jobs import StopReason

ENDS: list[StopReason] = ["EOS", "STOP_SEQUENCE", "MAX_TOKENS"]
PIECES = st.lists(st.tuples(st.sampled_from(["one ", "two", "\n", "é"]), st.booleans()), max_size=12)
SHAPES: list[tuple[Wire, Json]] = [
    *((wire, {}) for wire in WIRES),
    (RESPONSES, {"reasoning": {"summary": "auto"}}),
    (RESPONSES, {"include": ["reasoning.encrypted_content"]}),
    (MESSAGES, {"thinking": {"type": "adaptive", "display": "omitted"}}),
]


def of(wire: Wire, drawn: Sequence[tuple[str, bool]]) -> list[Any]:
    return pieces(*[(text, is_reasoning and wire in READ) for text, is_reasoning in drawn])


@pytest.mark.parametrize(("wire", "fields"), SHAPES)
@given(PIECES, st.sets(st.integers(0, 12)), st.sampled_from(ENDS))
def test_a_stream_is_legal_and_sums_up_to_the_whole_answer(
    wire: Wire, fields: Json, drawn: list[tuple[str, bool]], silent: set[int], end: StopReason
) -> None:
    """Signs of life may come at any time; before the job has its slot they do for some wires only."""
    parts = of(wire, drawn)
    choice = wire.choice(wire.asked(stream=True, **fields))
    stream = choice.sign_of_life() if 0 in silent and wire in (RESPONSES, MESSAGES) else b""
    stream += start(choice)
    for piece in parts:
        stream += choice.token(piece) + (choice.sign_of_life() if piece.index + 1 in silent else b"")
    stream += finish(choice, end, len(parts))
    whole = wire.whole(*parts, reason=end, **fields)
    assert wire.folded(stream) == whole
    assert wire.told(whole).reason == wire.ends[end]


@pytest.mark.parametrize("wire", WIRES)
@given(PIECES)
@example([])
def test_a_failure_is_the_last_event_of_a_stream(wire: Wire, drawn: list[tuple[str, bool]]) -> None:
    choice = wire.choice(wire.asked(stream=True))
    stream = start(choice) + b"".join(map(choice.token, of(wire, drawn)))
    last = fail(choice)
    assert last.count(b"\n\n") == 1
    if wire in (RESPONSES, MESSAGES):
        error = wire.folded(stream + last)["error"]
        kind: Json = {"code": "server_error"} if wire is RESPONSES else {"type": "overloaded_error"}
    else:
        error = json.loads(last.removeprefix(b"data: "))["error"]
        kind = {"type": "server_error", "param": None, "code": "engine_restarted"}
    assert error == kind | {"message": "the engine was restarted"}


@pytest.mark.parametrize("wire", WIRES)
@given(PIECES, PIECES)
def test_an_answer_runs_again_from_its_start(
    wire: Wire, lost: list[tuple[str, bool]], kept: list[tuple[str, bool]]
) -> None:
    choice = wire.choice(wire.asked())
    start(choice)
    for piece in of(wire, lost):
        choice.token(piece)
    choice.rewind()
    for piece in of(wire, kept):
        choice.token(piece)
    finish(choice, "EOS", len(kept))
    assert wire.body_of(choice) == wire.whole(*of(wire, kept))


# ── parts ────────────────────────────────────────────────────────────────────────────────────────

TOOLS: list[Json] = [
    {"type": "function", "name": "read", "parameters": {}},
    {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "find", "parameters": {}}]},
    {"type": "custom", "name": "patch"},
]
NAMES = ["read", "files__find", "patch"]

TEXTS = st.text(alphabet=st.sampled_from(["a", "é", "\n", " ", "🙂", '"', "\\", "<", "x"]), min_size=1, max_size=6)
"""Pieces of text, never empty."""


@st.composite
def sequences(draw: st.DrawFn) -> list[Delta]:
    """The deltas of one answer."""
    found: list[Delta] = []
    n_calls = 0
    for _ in range(draw(st.integers(0, 8))):
        match draw(st.sampled_from(["content", "thought", "call"])):
            case "content":
                found.append(Content(draw(TEXTS)))
            case "thought":
                found.append(Thought(draw(TEXTS)))
            case _:
                found.append(CallBegun(n_calls, f"id{n_calls}", draw(st.sampled_from(NAMES))))
                found += [Arguments(n_calls, text) for text in draw(st.lists(TEXTS, max_size=4))]
                n_calls += 1
    return found


def said(deltas: Sequence[Delta], kind: type[Content] | type[Thought]) -> str:
    """All text of one kind, without white space: blank texts may be left out, and nothing else may."""
    return "".join("".join(delta.text.split()) for delta in deltas if isinstance(delta, kind))


def parts_of(wire: Wire, deltas: Sequence[Delta], **fields: Any) -> tuple[PartsChoice[Any], list[Json]]:
    """A streamed answer of these deltas, and the events of its parts."""
    answer = wire.choice(wire.asked(stream=True, **fields))
    assert isinstance(answer, PartsChoice)
    added = plain([{"type": kind, **rest} for delta in deltas for kind, rest in answer.add(delta)])
    last = events_of(finish(answer, "EOS", len(deltas)))
    return answer, [event for event in added + last if "index" in event or "output_index" in event]


def plain(made: Sequence[Any]) -> list[Json]:
    found: list[Json] = msgspec.json.decode(msgspec.json.encode(made))
    return found


@pytest.mark.parametrize("fields", [fields for wire, fields in SHAPES if wire is RESPONSES])
@given(sequences())
def test_any_deltas_become_items_event_by_event(fields: Json, deltas: list[Delta]) -> None:
    answer, events = parts_of(RESPONSES, deltas, tools=TOOLS, **fields)
    found = folded_items(events)
    assert found == plain([part.item() for part in answer.parts])
    assert found
    for kind, item_kind in ((Content, "message"), (Thought, "reasoning")):
        texts = (text_of(item) for item in found if item["type"] == item_kind)
        assert "".join("".join(texts).split()) == said(deltas, kind)
    begun = [delta for delta in deltas if isinstance(delta, CallBegun)]
    calls = [item for item in found if item["type"].endswith("call")]
    assert [call["call_id"] for call in calls] == [delta.id for delta in begun]
    for call, delta in zip(calls, begun, strict=True):
        if call["type"] == "function_call":
            texts = (one.text for one in deltas if isinstance(one, Arguments) and one.index == delta.index)
            assert call["arguments"] == "".join(texts)


@given(sequences(), st.booleans())
def test_any_deltas_become_blocks_event_by_event(deltas: list[Delta], shows_thinking: bool) -> None:
    display = "summarized" if shows_thinking else "omitted"
    answer, events = parts_of(MESSAGES, deltas, thinking={"type": "adaptive", "display": display})
    found = folded_blocks(events)
    assert found == plain([part.block() for part in answer.parts])
    texts = [block["text"] for block in found if block["type"] == "text"]
    assert "".join("".join(texts).split()) == said(deltas, Content)
    assert all(text.strip() for text in texts if len(found) > 1)
    thoughts = "".join(block["thinking"] for block in found if block["type"] == "thinking")
    assert "".join(thoughts.split()) == (said(deltas, Thought) if shows_thinking else "")
    begun = [(delta.id, delta.name) for delta in deltas if isinstance(delta, CallBegun)]
    assert [(block["id"], block["name"]) for block in found if block["type"] == "tool_use"] == begun


def test_a_tool_is_answered_with_the_clients_names() -> None:
    deltas: list[Delta] = [
        CallBegun(0, "a", "files__find"),
        Arguments(0, "{}"),
        CallBegun(1, "b", "patch"),
        *(Arguments(1, part) for part in ('{"in', 'put": "*** Begin\\', 'n\\u00e9"', "}")),
    ]
    found, patch = folded_items(parts_of(RESPONSES, deltas, tools=TOOLS)[1])
    assert (found["name"], found["namespace"], found["arguments"]) == ("find", "files", "{}")
    assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "patch", "*** Begin\né")
    assert "namespace" not in patch


def test_arguments_that_are_no_object_are_given_as_text() -> None:
    answer, _ = parts_of(MESSAGES, [CallBegun(0, "a", "read"), Arguments(0, '{"path": "/et')])
    (part,) = answer.parts
    assert plain([part.block()])[0]["input"] == {UNREADABLE: '{"path": "/et'}


# ── calls ────────────────────────────────────────────────────────────────────────────────────────

FORMS = [CALLING[name] for name in ("generic", "qwen3-coder", "deepseek-v3", "harmony", "llama-3")]


@st.composite
def cases(draw: st.DrawFn) -> tuple[ChatFormat, Answer, list[str], bool]:
    form = draw(st.sampled_from(FORMS))
    answer = draw(answers(form))
    text = written(form, answer)
    is_cut = draw(st.booleans())
    if is_cut:
        text = text[: draw(st.integers(0, len(text)))]
    return form, answer, [piece for piece in draw(pieces_of(text)) if piece], is_cut


@pytest.mark.parametrize("wire", READ)
@given(cases())
def test_an_answer_says_what_the_reader_reads(wire: Wire, case: tuple[ChatFormat, Answer, list[str], bool]) -> None:
    form, answer, texts, is_cut = case
    reason: StopReason = "MAX_TOKENS" if is_cut else "EOS"
    terms = replace(TERMS, chat_format=form, max_text_chars=100_000)
    fields = {"tools": wire.offering(answer.tools)}
    schemas = wire.asked(terms, **fields).reading.use.schemas()
    streamed, whole = wire.both(*pieces(*texts), reason=reason, terms=terms, **fields)
    for told, is_whole in ((streamed, False), (whole, True)):
        reader = Reader(form, schemas, new_id=str)
        deltas = [*reader.push("".join(texts)), *reader.finish(is_cut=is_cut)]
        message = message_of(deltas, is_unfinished=is_whole and reader.is_unfinished)
        calls = [(call.name, loaded(call.arguments or "{}")) for call in message.calls]
        assert [name for name, _ in told.calls] == [name for name, _ in calls]
        if not reader.is_unfinished:
            assert told.calls == calls
        if wire is CHAT or not is_blank(message.content):
            assert told.content.strip() == message.content.strip()
        assert told.reasoning == message.reasoning
        if wire is not RESPONSES or not reader.is_unfinished:
            is_called = bool(calls) and not is_cut and not reader.is_unfinished
            assert told.reason == (wire.called if is_called else wire.ends[reason])


def is_blank(text: str) -> bool:
    return not text.strip()


CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>'
CALLS = f'I look.\n{CALL}\n<tool_call>\n{{"name": "patch", "arguments": {{"input": "line\\n"}}}}\n</tool_call>'
OFFERED = {"read": {"type": "object", "properties": {"path": {"type": "string"}}}, "patch": None}


@pytest.mark.parametrize("wire", READ)
@given(st.lists(st.integers(0, len(CALLS)), max_size=8))
def test_calls_are_read_however_the_text_comes(wire: Wire, cuts: list[int]) -> None:
    tools = wire.offering(OFFERED)
    if wire is RESPONSES:
        tools[1] = {"type": "custom", "name": "patch"}
    texts = [CALLS[begin:end] for begin, end in itertools.pairwise(sorted({0, *cuts, len(CALLS)}))]
    patch = "line\n" if wire is RESPONSES else {"input": "line\n"}
    for told in wire.both(*pieces(*texts), tools=tools):
        told.content = told.content.strip()
        assert told == Told("I look.", "", [("read", {"path": "a"}), ("patch", patch)], wire.called)


@pytest.mark.parametrize("wire", READ)
def test_calls_are_text_without_tools_to_call(wire: Wire) -> None:
    none = {"type": "none"} if wire is MESSAGES else "none"
    for fields in ({}, {"tools": wire.offering(OFFERED), "tool_choice": none}):
        for told in wire.both(*pieces(CALL), **fields):
            assert told == Told(CALL, "", [], wire.ends["EOS"])


# ── the end of a call ────────────────────────────────────────────────────────────────────────────

LOOK = {"look": {"type": "object", "properties": {"at": {"type": "string"}}}}
ENDING = [CALLING[name] for name in ("hermes", "qwen3-coder", "kimi-k2", "lfm2", "gemma-4", "minimax-m3", "llama-3")]


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[ChatFormat, list[str], int]:
    """A text that ends in a call, and the number of calls before it."""
    form = draw(st.sampled_from(ENDING))
    assert form.calls is not None
    calls = [("look", {"at": f"here {n}"}) for n in range(draw(st.integers(1, 3)))]
    text = section(form.calls, calls)
    last = text.index(f"here {len(calls) - 1}")
    cut = draw(pieces_of(text[: last + draw(st.integers(0, 5))]))
    return form, [piece for piece in cut if piece], len(calls) - 1


@pytest.mark.parametrize("wire", READ)
@pytest.mark.parametrize("reason", ENDS)
@given(case=cut_texts())
def test_a_whole_answer_leaves_the_unfinished_call_out_and_a_stream_does_not_say_that_it_is_called(
    wire: Wire, reason: StopReason, case: tuple[ChatFormat, list[str], int]
) -> None:
    form, texts, n_calls = case
    options = {"tools": wire.offering(LOOK), "terms": replace(TERMS, chat_format=form), "reason": reason}
    streamed, whole = wire.both(*pieces(*texts), **options)
    assert whole.calls == [("look", {"at": f"here {n}"}) for n in range(n_calls)]
    assert form.calls is not None
    if reason != "EOS" or form.calls.form not in ("python", "gemma"):  # these are called as a whole, else content
        assert whole.reason == wire.ends[reason]
    assert n_calls <= len(streamed.calls) <= n_calls + 1
    if len(streamed.calls) > n_calls and wire is not RESPONSES:
        assert streamed.reason == wire.ends[reason]


@pytest.mark.parametrize(
    "family", [family.format for family in formats().family if family.format.calls], ids=lambda one: one.name
)
@pytest.mark.parametrize("reason", ["EOS", "STOP_SEQUENCE"])
def test_a_complete_call_is_called(family: ChatFormat, reason: StopReason) -> None:
    assert family.calls is not None
    if family.calls.form == "harmony":
        return
    text = section(family.calls, [("look", {"at": "x"})]).removeprefix(family.opening)
    options = {"tools": CHAT.offering(LOOK), "terms": replace(TERMS, chat_format=family), "reason": reason}
    assert CHAT.both(*pieces(*text), **options) == [Told("", "", [("look", {"at": "x"})], "tool_calls")] * 2


@pytest.mark.parametrize(
    ("wire", "choice", "is_parallel"),
    [
        (CHAT, {"type": "function", "function": {"name": "look"}}, False),
        (CHAT, "required", True),
        (RESPONSES, {"type": "function", "name": "look"}, False),
        (RESPONSES, "required", True),
        (MESSAGES, {"type": "tool", "name": "look"}, False),
        (MESSAGES, {"type": "any"}, True),
    ],
)
def test_a_named_tool_is_called_once(wire: Wire, choice: Any, is_parallel: bool) -> None:
    tools = wire.asked(tools=wire.offering(LOOK), tool_choice=choice).reading.use.for_engine()
    assert (tools.is_required, tools.is_parallel) == (True, is_parallel)


# ── reasoning ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("wire", "fields"),
    [
        (RESPONSES, {"include": ["reasoning.encrypted_content"]}),
        (MESSAGES, {"thinking": {"type": "adaptive", "display": "summarized"}}),
        (MESSAGES, {"thinking": {"type": "adaptive", "display": "omitted"}}),
    ],
)
def test_reasoning_comes_back_in_the_next_request(wire: Wire, fields: Json) -> None:
    made = wire.whole(*pieces(("Why é?", True), "So."), **fields)
    if wire is RESPONSES:
        thought, message = made["output"]
        given_back = [{key: value for key, value in thought.items() if key != "content"} | {"id": "rs_1"}, message]
        again = wire.asked(input=[*HELLO, *given_back, *HELLO])
    else:
        again = wire.asked(messages=[*HELLO, {"role": "assistant", "content": made["content"]}, *HELLO])
    _, reply, _ = msgspec.json.decode(talk(again).messages)
    assert reply == {"role": "assistant", "content": "So.", "reasoning_content": "Why é?"}
    assert again.ignored == ()


def test_the_stop_that_matched_is_named() -> None:
    assert MESSAGES.whole(*pieces("x"), reason="STOP_SEQUENCE")["stop_sequence"] == STOP
    assert INFILL.whole(*pieces("x"), reason="STOP_SEQUENCE")["stopping_word"] == STOP
