"""A constraint on parts of an answer: when it sleeps, what wakes it, how far the reasoning goes, what it takes back."""

import json
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.constraints.asked import begun, submitted
from tests.constraints.made_vocabulary import END, MadeVocabulary, markers_of
from tests.formats.writing import FORMATS
from worker.constraints.answer import AnswerConstraint
from worker.constraints.jobs import Constraints
from worker.engine.channels import CONTENT, Channel, ChannelState
from worker.engine.families import marks_among
from worker.wire.chat_format import HERMES, CallFormat, ChatFormat
from worker.wire.jobs import TokenId
from worker.wire.prompts import OfferedTool, Tools

LAW = settings(max_examples=60)

TOOL = OfferedTool(
    name="get",
    place=0,
    parameters=json.dumps(
        {"type": "object", "properties": {"n": {"enum": [1, 23]}, "s": {"type": "string"}}, "required": ["n"]}
    ),
)
ASKED = Tools(tools=(TOOL,))
CALLS = ('{"name": "get", "arguments": {"n": 1}}', '{"name": "get", "arguments": {"n": 23, "s": "<tool_call> }"}}')
MARKED = ChatFormat(name="marked", calls=CallFormat(form="named", call_begin="[CALL]", name_end="[ARGS]"))
BARE = ChatFormat(name="bare", calls=CallFormat(form="object", arguments_key="parameters"))

WORDS = ("<think>", "</think>", "<tool_call>", "call>", "l>\n", "x<t", "ool_", "\n\n", '{"', "get", "1}}")


def made_vocabulary(*controls: str) -> MadeVocabulary:
    return MadeVocabulary(controls, WORDS)


SPELLED, CONTROLLED = made_vocabulary(), made_vocabulary("[CALL]", "[ARGS]", "[THINK]", "[/THINK]")


def constraint_of(
    made: MadeVocabulary,
    *,
    form: ChatFormat = HERMES,
    tools: Tools | None = ASKED,
    json_schema: str | None = None,
    budget: int | None = None,
    place: ChannelState = CONTENT,
) -> AnswerConstraint:
    marks = marks_among(made.controls, made.words)
    constraints = Constraints(made.vocabulary(), give_back=lambda: None, marks=marks, form=form)
    return begun(constraints, place, tools=tools, json_schema=json_schema, reasoning_budget=budget)


def go_on(constraint: AnswerConstraint, tokens: Iterable[int]) -> None:
    for token in tokens:
        mask = constraint.allowed()
        assert mask is None or mask[token] or constraint.n_allowed([TokenId(token)]), "it is allowed"
        constraint.accept(TokenId(token))


def state(constraint: AnswerConstraint) -> tuple[object, ...]:
    mask = constraint.allowed()
    return constraint.is_masking, constraint.is_over, constraint.forced(), None if mask is None else mask.tolist()


def cut_at(made: MadeVocabulary, text: str, cuts: list[int]) -> list[int]:
    """The text in tokens that differ with the cuts."""
    data = text.encode()
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [token for a, b in pairwise(edges) for token in made.spell(data[a:b])]


some_cuts = st.lists(st.integers(0, 200), max_size=6)
free_texts = st.text('ab<tool_call\n{}" é', max_size=20).filter(lambda text: "<tool_call>" not in text)


@LAW
@given(before=free_texts, cuts=some_cuts)
def test_nothing_is_masked_before_a_call_begins_however_the_text_is_cut(before: str, cuts: list[int]) -> None:
    constraint = constraint_of(SPELLED)
    for token in cut_at(SPELLED, before.removesuffix("<tool_call"), cuts):
        assert not constraint.is_masking
        assert constraint.allowed() is None
        assert constraint.n_allowed([TokenId(token), TokenId(5)]) == 2
        constraint.accept(TokenId(token))
        assert not constraint.is_over


@LAW
@given(
    before=free_texts,
    texts=st.lists(st.tuples(st.sampled_from(CALLS), free_texts), min_size=1, max_size=3),
    cuts=some_cuts,
    is_parallel=st.booleans(),
)
def test_a_begun_call_is_held_to_its_form_and_free_text_may_follow(
    before: str, texts: list[tuple[str, str]], cuts: list[int], is_parallel: bool
) -> None:
    constraint = constraint_of(SPELLED, tools=Tools(tools=(TOOL,), is_parallel=is_parallel))
    go_on(constraint, cut_at(SPELLED, before + "-", cuts))
    for call, after in texts:
        assert not constraint.is_masking
        go_on(constraint, cut_at(SPELLED, "<tool_call>", cuts))
        assert constraint.is_masking
        assert SPELLED.shown(each.id for each in constraint.take_forced(99)).startswith(
            b'\n{"name": "get", "arguments": {"n": '
        )
        mask = constraint.allowed()
        assert mask is not None
        assert not mask[SPELLED.ends].any(), "a begun call is completed"
        rest = f"\n{call}\n</tool_call>".removeprefix('\n{"name": "get", "arguments": {"n": ')
        while rest:
            token = SPELLED.spell(rest.encode())[0]
            constraint.accept(TokenId(token))
            rest = rest.encode()[len(SPELLED.pieces[token]) :].decode()
            for each in constraint.take_forced(99):
                rest = rest.removeprefix(each.piece.decode())
        if not is_parallel:
            assert constraint.is_over
            mask = constraint.allowed()
            assert mask is not None
            assert np.flatnonzero(mask).tolist() == SPELLED.ends.tolist()
            return
        assert not constraint.is_over
        go_on(constraint, cut_at(SPELLED, "-" + after + "-", cuts))


@pytest.mark.parametrize("rest", ["", "\n", "\n{"])
def test_a_token_that_spans_the_beginning_goes_on_behind_it(rest: str) -> None:
    made = MadeVocabulary((), [*WORDS, "call>\n{"])
    constraint = constraint_of(made)
    text = "x<tool_" + "call>" + rest
    go_on(constraint, [*made.spell(b"x<tool_"), *made.spell(("call>" + rest).encode())])
    said = text + made.shown(each.id for each in constraint.take_forced(99)).decode()
    assert said.startswith('x<tool_call>\n{"name": "get"')


def test_what_fits_no_call_behind_a_beginning_is_text() -> None:
    made = MadeVocabulary((), [*WORDS, "call> is"])
    constraint = constraint_of(made)
    go_on(constraint, [*made.spell(b"<tool_"), *made.spell(b"call> is"), *made.spell(b" a marker; ")])
    assert not constraint.is_masking
    go_on(constraint, made.spell(b"<tool_call>"))
    assert constraint.is_masking


def test_the_name_of_a_control_token_begins_no_call_where_it_is_spelled() -> None:
    constraint = constraint_of(CONTROLLED, form=MARKED)
    go_on(constraint, CONTROLLED.spell(b"[CALL]"))
    assert not constraint.is_masking
    go_on(constraint, [CONTROLLED.controls["[CALL]"]])
    assert CONTROLLED.shown(each.id for each in constraint.take_forced(99)).startswith(b"get[ARGS]")


@pytest.mark.parametrize(("before", "is_call"), [("", True), ("\n ", True), ("so ", False)])
def test_a_call_without_a_marker_begins_the_answer_only(before: str, is_call: bool) -> None:
    constraint = constraint_of(SPELLED, form=BARE)
    go_on(constraint, SPELLED.spell(before.encode() + b'{"name": "get"'))
    assert constraint.is_masking is is_call


@LAW
@given(
    text=st.lists(st.sampled_from([*WORDS, "a", *CALLS, "\n</tool_call>", "</think>"]), max_size=8),
    n_kept=st.integers(0, 99),
)
def test_what_is_taken_back_was_never_said(text: list[str], n_kept: int) -> None:
    whole, tokens = constraint_of(SPELLED), [token for each in text for token in SPELLED.spell(each.encode())]
    tokens = tokens[: whole.n_allowed([TokenId(token) for token in tokens])]
    n_kept = min(n_kept, len(tokens))
    fresh = constraint_of(SPELLED)
    for token in tokens[:n_kept]:
        fresh.accept(TokenId(token))
    for token in tokens:
        whole.accept(TokenId(token))
    whole.take_back(len(tokens) - n_kept)
    assert state(whole) == state(fresh)
    rest = [TokenId(token) for token in tokens[n_kept:]]
    assert whole.n_allowed(rest) == fresh.n_allowed(rest) == len(rest)
    assert state(whole) == state(fresh)


@pytest.mark.parametrize("is_required", [False, True])
def test_a_call_may_end_the_reasoning(is_required: bool) -> None:
    marks = marks_among({}, SPELLED.words, None, (), ["<tool_call>\n"])
    constraints = Constraints(SPELLED.vocabulary(), give_back=lambda: None, marks=marks)
    tools = Tools(tools=(TOOL,), is_required=is_required)
    found = begun(constraints, ChannelState(Channel.REASONING, closer=CLOSE), tools=tools)
    go_on(found, [*SPELLED.spell(b"Hm. "), SPELLED.words["<tool_call>"]])
    assert SPELLED.shown(each.id for each in found.take_forced(99)).startswith(b'\n{"name": "get"')


THINK, CLOSE = SPELLED.words["<think>"], SPELLED.words["</think>"]


@LAW
@given(budget=st.integers(0, 5), n_tokens=st.integers(0, 9), is_opened=st.booleans(), n_ahead=st.integers(0, 5))
def test_the_reasoning_is_closed_when_its_budget_is_used_up(
    budget: int, n_tokens: int, is_opened: bool, n_ahead: int
) -> None:
    place = ChannelState(Channel.REASONING, closer=CLOSE) if is_opened else CONTENT
    constraint = constraint_of(SPELLED, tools=None, budget=budget, place=place)
    if not is_opened:
        go_on(constraint, SPELLED.spell(b"ab"))
        go_on(constraint, [THINK])
    for n_said in range(n_tokens):
        if n_said == budget:
            break
        assert constraint.forced() == []
        ahead = [TokenId(5)] * n_ahead
        assert constraint.n_allowed(ahead) == min(n_ahead, budget - n_said), "drafts count"
        constraint.accept(TokenId(5))
    if n_tokens < budget:
        assert constraint.forced() == []
        return
    assert [each.id for each in constraint.take_forced(9)] == [CLOSE]
    go_on(constraint, SPELLED.spell(b"abc"))
    assert not constraint.is_masking


MUSE = FORMATS["muse"]
TO_MUSE = MadeVocabulary([*markers_of(MUSE), "<|eot|>"])
MUSE_CALL = '<|message|><atem:function_calls>\n<atem:invoke name="get">\n<atem:parameter name="n">'


@pytest.mark.parametrize("is_required", [False, True])
def test_in_the_form_of_muse_calls_follow_reasoning_that_has_its_budget(is_required: bool) -> None:
    tools, role = Tools(tools=(TOOL,), is_required=is_required), ChannelState(Channel.ROLE)
    constraint = constraint_of(TO_MUSE, form=MUSE, tools=tools, budget=3, place=role)
    go_on(constraint, TO_MUSE.tokens(" to=self<|message|>get"))
    go_on(constraint, TO_MUSE.spell(b"ab"))
    assert TO_MUSE.shown(each.id for each in constraint.take_forced(1)) == b"<|eom|>"
    go_on(constraint, TO_MUSE.tokens("<|start|>assistant to=get")[len(constraint.take_forced(99)) :])
    said = TO_MUSE.shown(each.id for each in constraint.take_forced(99)).decode()
    assert said.startswith(MUSE_CALL)


def test_the_prompt_may_begin_a_call() -> None:
    form = FORMATS["functionary-v3.2"]
    for text, is_call in (("get\n", True), ("all\n>>> get\n", False), ("all\nSo:\n>>>get\n", True), ("get it", False)):
        constraint = constraint_of(SPELLED, form=form)
        go_on(constraint, SPELLED.spell(text.encode()))
        assert constraint.is_masking is is_call, text


def test_a_whole_answer_is_constrained_behind_its_reasoning() -> None:
    asked = Tools(tools=(TOOL,), is_required=True)
    constraint = constraint_of(SPELLED, tools=asked)
    mask = constraint.allowed()
    assert mask is not None
    assert {*np.flatnonzero(mask).tolist()} == {THINK, SPELLED.words["<tool_call>"]}
    go_on(constraint, [THINK, *SPELLED.spell(b"Hm.<tool_call>")])
    assert constraint.allowed() is None
    assert constraint.settled(SPELLED.controls[END]) == CLOSE, "no answer ends inside its reasoning"
    go_on(constraint, [CLOSE])
    assert SPELLED.shown(each.id for each in constraint.take_forced(99)).startswith(b'<tool_call>\n{"name": "get"')


@pytest.mark.parametrize("place", [CONTENT, ChannelState(Channel.REASONING, closer=CLOSE)])
def test_an_instance_of_a_schema_comes_behind_the_reasoning(place: ChannelState) -> None:
    constraint = constraint_of(SPELLED, tools=None, json_schema='{"enum": [12]}', place=place)
    go_on(constraint, [THINK] if place is CONTENT else [])
    go_on(constraint, [*SPELLED.spell(b'"no": '), CLOSE])
    assert SPELLED.shown(each.id for each in constraint.take_forced(99)) == b"12"
    assert constraint.is_over


@pytest.mark.parametrize("text", ["34", '<tool_call>\n{"name": "get", "arguments": {"n": 1}}\n</tool_call>'])
def test_beside_a_schema_an_answer_is_an_instance_or_calls(text: str) -> None:
    constraint = constraint_of(SPELLED, json_schema='{"enum": [34]}')
    constraint.accept(TokenId(SPELLED.spell(text.encode())[0]))
    said = SPELLED.pieces[SPELLED.spell(text.encode())[0]] + SPELLED.shown(
        each.id for each in constraint.take_forced(99)
    )
    assert text.encode().startswith(said)
    assert len(said) > 1


def test_without_tools_schema_or_budget_there_is_no_constraint() -> None:
    constraints = Constraints(SPELLED.vocabulary(), give_back=lambda: None, marks=marks_among({}, SPELLED.words))
    assert constraints.constrain(submitted()) is None
