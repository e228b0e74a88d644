"""A reasoning between markers that are text: its budget, its end in a whole answer, and what sleeps meanwhile."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.constraints.asked import begun
from tests.constraints.made_vocabulary import END, MadeVocabulary
from tests.formats.writing import FORMATS
from tests.llama.test_vocabularies import load_vocabulary
from tests.vocabularies import VOCABULARIES
from worker.constraints.answer import AnswerConstraint
from worker.constraints.jobs import Constraints
from worker.engine.channels import CONTENT, NO_CONTROL_TOKENS, ChannelState
from worker.engine.families import marks_among
from worker.formats.read.parse import Message, Reader, message_of
from worker.llama.model import constraints_of
from worker.wire.chat_format import ChatFormat
from worker.wire.jobs import TokenId
from worker.wire.prompts import OfferedTool, Tools

LAW = settings(max_examples=60)
TOOL = OfferedTool(
    name="get",
    place=0,
    parameters=json.dumps({"type": "object", "properties": {"n": {"enum": [1, 23]}}, "required": ["n"]}),
)
WORDS = (
    "<think",
    "ink>\n",
    "</th",
    "ink>",
    "ink>\n\n",
    "ENSE]",
    "[BEGIN",
    "reasoning",
    "\n\n",
    '{"',
    "get",
    "]\nx",
    ">\nx",
)
SPELLED = MadeVocabulary((), WORDS)
KIMI = FORMATS["kimi-k3"]
"""Each of its markers is control tokens with a word between them."""
SPEAKING = {
    "think": (FORMATS["qwen3"], SPELLED),
    "apriel": (FORMATS["apriel"], SPELLED),
    "kimi-k3": (KIMI, MadeVocabulary(("<|open|>", "<|close|>", "<|sep|>"), WORDS)),
}
OPENED = replace(CONTENT, is_opened=True)


def constraint_of(
    name: str,
    *,
    place: ChannelState,
    tools: Tools | None = None,
    json_schema: str | None = None,
    budget: int | None = None,
) -> AnswerConstraint:
    form, made = SPEAKING[name]
    assert form.reasoning is not None
    marks = replace(marks_among(made.controls), text_markers=(form.reasoning.begin, form.reasoning.end))
    assert not marks.turns
    constraints = Constraints(made.vocabulary(), give_back=lambda: None, marks=marks, form=form)
    return begun(constraints, place, tools=tools, json_schema=json_schema, reasoning_budget=budget)


def go_on(constraint: AnswerConstraint, tokens: list[int]) -> None:
    for token in tokens:
        assert constraint.n_allowed([TokenId(token)]) == 1
        constraint.accept(TokenId(token))


def cut_at(made: MadeVocabulary, text: str, cuts: list[int]) -> list[int]:
    """The text in tokens that differ with the cuts."""
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [token for a, b in pairwise(edges) for token in made.tokens(text[a:b])]


def read(form: ChatFormat, text: str) -> Message:
    """The message of an answer. A text that the prompt has begun stands before it, as the engine says it."""
    reader = Reader(form, {TOOL.name: json.loads(TOOL.parameters)}, new_id=str, reads_fenced=False)
    return message_of([*reader.push(text), *reader.finish()])


thoughts = st.text("ab<think\n[BEGIN]/ é", max_size=20)
some_cuts = st.lists(st.integers(0, 99), max_size=5)


@pytest.mark.parametrize("name", SPEAKING)
@LAW
@given(thought=thoughts, cuts=some_cuts, budget=st.integers(0, 9), is_opened=st.booleans())
def test_a_reasoning_between_texts_is_closed_when_its_budget_is_used_up(
    name: str, thought: str, cuts: list[int], budget: int, is_opened: bool
) -> None:
    form, made = SPEAKING[name]
    assert form.reasoning is not None
    begin = made.tokens(form.reasoning.begin.rstrip())
    constraint = constraint_of(name, place=OPENED if is_opened else CONTENT, budget=budget)
    go_on(constraint, [] if is_opened else begin)
    tokens = cut_at(made, thought, cuts)
    said: list[int] = []
    while tokens and len(said) < budget:
        assert constraint.forced() == []
        ahead = [TokenId(token) for token in tokens[:3]]
        n_free = min(len(ahead), budget - len(said))
        assert constraint.n_allowed(ahead) >= n_free, "drafts count"
        go_on(constraint, tokens[:1])
        said += tokens[:1]
        del tokens[:1]
    if len(said) < budget:
        assert constraint.forced() == []
        return
    said += [each.id for each in constraint.take_forced(99)]
    assert constraint.forced() == []
    text = made.shown([*begin, *said, *made.spell(b" Yes.")]).decode(errors="replace")
    message = read(form, text)
    assert message.content.strip().endswith("Yes."), text
    assert form.reasoning.end.strip() not in message.content + message.reasoning
    go_on(constraint, made.spell(b"abc"))
    assert not constraint.is_masking


@pytest.mark.parametrize("name", SPEAKING)
@LAW
@given(thought=thoughts, cuts=some_cuts, n_kept=st.integers(0, 99), budget=st.integers(0, 9))
def test_what_is_taken_back_was_never_thought(
    name: str, thought: str, cuts: list[int], n_kept: int, budget: int
) -> None:
    form, made = SPEAKING[name]
    assert form.reasoning is not None
    whole, fresh = (constraint_of(name, place=CONTENT, budget=budget) for _ in range(2))
    tokens = [TokenId(each) for each in cut_at(made, f"{form.reasoning.begin}{thought}{form.reasoning.end}a", cuts)]
    tokens = tokens[: whole.n_allowed(tokens)]
    n_kept = min(n_kept, len(tokens))
    for token in tokens:
        whole.accept(token)
    whole.take_back(len(tokens) - n_kept)
    for token in tokens[:n_kept]:
        fresh.accept(token)
    assert whole.forced() == fresh.forced()
    assert whole.n_allowed(tokens[n_kept:]) == fresh.n_allowed(tokens[n_kept:])


@pytest.mark.parametrize("name", ["think", "apriel"])
@pytest.mark.parametrize("is_required", [False, True])
def test_a_call_comes_behind_a_reasoning_that_the_prompt_has_opened(name: str, is_required: bool) -> None:
    form, made = SPEAKING[name]
    assert form.reasoning is not None
    assert form.calls is not None
    constraint = constraint_of(name, place=OPENED, tools=Tools(tools=(TOOL,), is_required=is_required))
    begin = form.calls.section_begin + form.calls.call_begin
    go_on(constraint, made.tokens(f"I write {begin}"))
    assert not constraint.is_masking
    end = TokenId(made.controls[END])
    if is_required:
        while (token := constraint.settled(end)) != end and not constraint.is_masking:
            constraint.accept(token)
    else:
        assert constraint.settled(end) == end
        go_on(constraint, made.tokens(form.reasoning.end + begin))
    assert constraint.is_masking
    said = made.shown(each.id for each in constraint.take_forced(99)).decode()
    assert (begin + '{"name": "get", "arguments": {"n": ').endswith(said)
    assert said


@pytest.mark.parametrize("name", ["think", "apriel"])
def test_an_instance_of_a_schema_does_not_begin_in_the_token_that_ends_the_reasoning(name: str) -> None:
    form, made = SPEAKING[name]
    assert form.reasoning is not None
    constraint = constraint_of(name, place=OPENED, json_schema='{"enum": [12]}')
    end = form.reasoning.end.strip()
    go_on(constraint, made.spell(end[:-1].encode()))
    [last] = made.spell(end[-1:].encode())
    assert constraint.settled(made.words[f"{end[-1]}\nx"]) == last
    go_on(constraint, [last])
    assert made.shown(each.id for each in constraint.take_forced(99)) == b"12"
    assert constraint.is_over


def test_where_a_call_ends_the_reasoning_it_is_held_to_its_form() -> None:
    form = FORMATS["glm-4.5"]
    marks = replace(NO_CONTROL_TOKENS, text_markers=("<think>", "</think>"))
    constraints = Constraints(SPELLED.vocabulary(), give_back=lambda: None, marks=marks, form=form)
    constraint = begun(constraints, OPENED, tools=Tools(tools=(TOOL,)), reasoning_budget=99)
    go_on(constraint, SPELLED.tokens("Hm. <tool_call>"))
    assert SPELLED.shown(each.id for each in constraint.take_forced(99)).startswith(b"get\n<arg_key>n")


@pytest.mark.model
@pytest.mark.parametrize("name", ["qwen2", "llama-spm", "llama-bpe", "gemma-4", "falcon"])
def test_real_vocabularies_close_a_reasoning_in_their_own_tokens(name: str) -> None:
    [vocabulary] = [each for each in VOCABULARIES if each.name == name]
    with load_vocabulary(vocabulary) as model:
        for form in (FORMATS["qwen3"], FORMATS["apriel"]):
            assert form.reasoning is not None
            marks = replace(
                marks_among(model.controls),
                turns={},
                text_markers=(form.reasoning.begin, form.reasoning.end),
                piece=model.piece,
            )
            prompt = model.tokenize(f"Hi {form.reasoning.begin}")
            assert marks.place_after(prompt).is_opened
            assert not marks.place_after(model.tokenize(f"{form.reasoning.begin} Hi")).is_opened
            constraint = begun(constraints_of(model, marks, form), marks.place_after(prompt), reasoning_budget=3)
            go_on(constraint, [int(token) for token in model.spell(b"one two three four five")][:3])
            closing = b"".join(each.piece for each in constraint.take_forced(99))
            assert closing.decode().strip() == form.reasoning.end.strip()
