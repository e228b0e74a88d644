"""A next-token head drafts: the model computes the same numbers with it as without, and so no answer is another one."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace as changed
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import replace

from tests.llama.conftest import GREEDY, LoadMade, MakeContext, each_once, slice_of
from tests.llama.served import Served
from tests.llama.test_snapshots import FREE_ROWS, N_SNAPSHOTS, SIZES, Tokens, served
from tests.on_cpu import loaded_on_cpu
from tools import made_architectures
from worker.engine.backend import LoadedDraft, Runner
from worker.engine.step import Sampled, Slice, Step
from worker.limits import MAX_HIDDEN_ROWS
from worker.llama.heads import HeadContext, ModelContext, StoredRows, positions_off
from worker.llama.invariance import has_own_products
from worker.llama.model import Model
from worker.llama.runner import LlamaRunner
from worker.models.upstream.architectures import HEADS_OF_PLAIN_POSITIONS, ROWS_OF_OUTPUTS_ALONE, WITH_A_HEAD
from worker.wire.jobs import JobKey, Logprob, SlotId, TokenId, TopToken

pytestmark = pytest.mark.model

KINDS = [kind for kind in made_architectures.WITH_A_HEAD if kind.architecture in WITH_A_HEAD]
EACH = pytest.mark.parametrize("kind", KINDS, ids=str)
N_SLOTS = 3
FIRST = SlotId(0)

WITH_EXPERTS = {"glm4moe", "hy_v3", "qwen35moe"}


def skip_if_experts_flip(kind: made_architectures.Kind) -> None:
    """Random weights leave near-ties between experts. Where sums depend on the rows beside, another one may win."""
    if kind.architecture in WITH_EXPERTS and not has_own_products():
        pytest.skip("this processor sums in another order beside other rows, and then another expert may win")


def test_every_architecture_whose_head_drafts_is_tried() -> None:
    assert {kind.architecture for kind in KINDS} == set(WITH_A_HEAD)


@pytest.fixture(scope="module")
def load_with_head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadMade]:
    with each_once(tmp_path_factory, made_architectures.write_kind, loads_heads=True) as load:
        yield load


class Pair:
    """A model's context and that of its head."""

    def __init__(self, model: Model, **changes: Any) -> None:
        threads = {"n_threads": 1, "n_threads_batch": 1}
        self.hidden = StoredRows(model, N_SLOTS)
        self.model = ModelContext(model, self.hidden, **{**SIZES, **threads, "n_snapshots": N_SNAPSHOTS, **changes})
        self.head = HeadContext(model, self.hidden, n_slots=N_SLOTS, n_ctx=SIZES["n_ctx"], **threads)

    def rows(self, slot: SlotId, positions: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        found = [self.hidden.of(slot, position) for position in positions]
        return np.stack([row for row in found if row is not None])


@pytest.fixture
def make_pair(load_with_head: LoadMade) -> Iterator[Callable[..., Pair]]:
    made: list[Pair] = []

    def make(kind: made_architectures.Kind, **changes: Any) -> Pair:
        made.append(Pair(load_with_head(kind), **changes))
        return made[-1]

    yield make
    for pair in made:
        pair.head.close()
        pair.model.close()


MakePair = Callable[..., Pair]


def some(seed: int, n: int) -> Tokens:
    return [TokenId(token) for token in Random(seed).choices(range(3, 250), k=n)]


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────


@EACH
def test_a_model_has_the_same_numbers_with_its_head(
    load_with_head: LoadMade, make_context: MakeContext, make_pair: MakePair, kind: made_architectures.Kind
) -> None:
    """Prompts of several lengths together, and steps of a token and of several."""
    plain, pair = make_context(load_with_head(kind), **SIZES, n_snapshots=N_SNAPSHOTS), make_pair(kind)
    steps = [
        [Slice(SlotId(slot), 0, some(slot, 40 + 30 * slot), GREEDY) for slot in range(N_SLOTS)],
        [Slice(SlotId(slot), 40 + 30 * slot, some(9, 1), GREEDY) for slot in range(N_SLOTS)],
        [Slice(SlotId(slot), 41 + 30 * slot, some(slot, 4), GREEDY, n_drafts=3) for slot in range(N_SLOTS)],
    ]
    for step in steps:
        for context in (plain, pair.model):
            context.decode(step)
        assert np.array_equal(plain.rows(), pair.model.rows())


@EACH
def test_each_token_has_the_row_that_it_has_alone(make_pair: MakePair, kind: made_architectures.Kind) -> None:
    """All tokens of a prompt have one, where the model computes all rows, and every token of a decode step."""
    skip_if_experts_flip(kind)
    together, alone = make_pair(kind), make_pair(kind)
    prompts = {SlotId(slot): some(slot, 20 + 10 * slot) for slot in range(N_SLOTS)}
    together.model.decode([slice_of(slot, 0, tokens) for slot, tokens in prompts.items()])
    together.model.decode(
        [Slice(slot, len(tokens), some(7, 3), GREEDY, n_drafts=2) for slot, tokens in prompts.items()]
    )
    for slot, tokens in prompts.items():
        n_tokens = len(tokens)
        alone.model.decode([slice_of(slot, 0, tokens)])
        for i, token in enumerate(some(7, 3)):
            alone.model.decode([slice_of(slot, n_tokens + i, [token])])
        kept = together.hidden.kept(slot, n_tokens + 3)
        assert kept == alone.hidden.kept(slot, n_tokens + 3)
        assert kept.stop == n_tokens + 3
        assert len(kept) == (4 if kind.architecture in ROWS_OF_OUTPUTS_ALONE else n_tokens + 3)
        assert together.rows(slot, kept) == pytest.approx(alone.rows(slot, kept), abs=0.05)


def test_rows_are_of_the_slots_last_tokens_alone(make_pair: MakePair) -> None:
    pair = make_pair(KINDS[2], n_batch=512, n_ubatch=512)
    n_tokens = MAX_HIDDEN_ROWS + 100
    pair.model.decode([slice_of(0, 0, some(1, n_tokens))])
    assert pair.hidden.kept(FIRST, n_tokens) == range(100, n_tokens)
    assert pair.hidden.kept(FIRST, n_tokens - 5) == range(100, n_tokens - 5), "the last ones were of wrong drafts"
    assert pair.hidden.of(FIRST, n_tokens - 5) is None
    pair.model.kv.trim(FIRST, 0)
    assert not pair.hidden.kept(FIRST, n_tokens), "the slot has another text"


@EACH
def test_a_head_says_the_same_of_a_text_in_one_part_and_in_several(
    make_pair: MakePair, kind: made_architectures.Kind
) -> None:
    """It depends on the tokens before, and on the model's rows of them."""
    pair = make_pair(kind)
    tokens = some(3, 24)

    def drafted(cuts: Sequence[int], text: Tokens) -> np.ndarray[Any, np.dtype[np.float32]]:
        pair.model.kv.trim(FIRST, 0)
        pair.head.kv.trim(FIRST, 0)
        for position, token in enumerate(text[:-1]):
            pair.model.decode([slice_of(0, position, [token])])
        pair.hidden.firsts[FIRST] = 1
        for begin, end in zip((1, *cuts), (*cuts, len(text)), strict=True):
            pair.head.decode([slice_of(0, begin - 1, text[begin:end])])
        return pair.head.rows().copy()

    whole = drafted((), tokens)
    assert np.isfinite(whole).all()
    assert drafted((5, 6, 20), tokens) == pytest.approx(whole, abs=0.05)
    assert np.abs(drafted((), [*tokens[:12], TokenId(250), *tokens[13:]]) - whole).max() > 0.1
    without = drafted((), tokens)
    pair.hidden.forget(FIRST)
    pair.head.kv.trim(FIRST, 0)
    pair.head.decode([slice_of(0, 0, tokens[1:])])
    assert np.abs(pair.head.rows() - without).max() > 0.1, "no row was read"


# ── what cannot be ───────────────────────────────────────────────────────────────────────────────


def test_positions_of_several_numbers_are_found_before_they_end_the_process(tmp_path: Path) -> None:
    [kind] = [kind for kind in KINDS if kind.architecture in HEADS_OF_PLAIN_POSITIONS]
    seeing = changed(kind, keys={**kind.keys, "rope.dimension_sections": [8, 8, 8, 8]})
    for each, reason in ((kind, None), (seeing, "takes no positions of several numbers")):
        path = made_architectures.write_kind(tmp_path / f"{reason}.gguf", each)
        with loaded_on_cpu(path, loads_heads=True) as model:
            assert (reason or "") in (positions_off(model) or "")
            assert (positions_off(model) is None) == (reason is None)


# ── the engine ───────────────────────────────────────────────────────────────────────────────────


class Lucky:
    """A head that is right in most places, because one with random weights never is. It is asked all the same, and what
    it draws is replaced by what `expected` has, which are whole texts."""

    def __init__(self, pair: Pair) -> None:
        self._runner = LlamaRunner(pair.head._model, pair.head)
        self._hidden = pair.hidden
        self.texts: list[Tokens] = []
        self.served: Served | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def run(self, step: Step) -> list[Sampled]:
        drawn = {each.slot: each for each in self._runner.run(step)}
        return [self._lucky(slice_, drawn[slice_.slot]) for slice_ in step.slices if slice_.slot in drawn]

    def _lucky(self, slice_: Slice, drawn: Sampled) -> Sampled:
        assert self.served is not None
        prompt = self.served.engine.scheduler.running[slice_.slot].prompt
        [text] = [text for text in self.texts if text[: len(prompt)] == prompt] or [[]]
        position = self._hidden.firsts[slice_.slot] + slice_.start + len(slice_.tokens)
        is_lucky = position < len(text) and position % 5
        token = text[position] if is_lucky else drawn.token
        return replace(drawn, token=token, logprob=Logprob(TopToken("", token, 0.0), ()))


def served_with(pair: Pair, *, n_slots: int = N_SLOTS) -> tuple[Served, Lucky]:
    lucky = Lucky(pair)
    draft = LoadedDraft(cast(Runner, lucky), FREE_ROWS, pair.hidden)
    lucky.served = served(pair.model, n_slots=n_slots, draft=draft)
    return lucky.served, lucky


@EACH
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_conversation_has_the_same_tokens_with_and_without_a_head(
    load_with_head: LoadMade,
    make_context: MakeContext,
    make_pair: MakePair,
    kind: made_architectures.Kind,
    temperature: float,
) -> None:
    """Each turn begins with what the last one has left in the cache, of which the head has no rows."""
    skip_if_experts_flip(kind)
    plain = served(make_context(load_with_head(kind), **SIZES))
    drafting, lucky = served_with(make_pair(kind))
    told = list[TokenId]()
    for turn in range(5):
        told = [*told, *some(turn, 60)]
        expected = plain.ask([told], 60 + turn, temperature)
        lucky.texts = [[*told, *expected[0]]]
        assert drafting.ask([told], 60 + turn, temperature) == expected
        told = [*told, *expected[0]]
    assert drafting.n_cached[JobKey(4)] > 300
    assert drafting.n_drafted > drafting.n_accepted > 50
    assert drafting.warnings == []


@EACH
def test_so_have_jobs_that_share_a_beginning_and_pause(
    load_with_head: LoadMade, make_context: MakeContext, make_pair: MakePair, kind: made_architectures.Kind
) -> None:
    skip_if_experts_flip(kind)
    plain = served(make_context(load_with_head(kind), **SIZES), n_slots=2)
    drafting, lucky = served_with(make_pair(kind), n_slots=2)
    beginning = some(2, 200)
    prompts = [[*beginning, *some(10 + i, 20)] for i in range(5)]
    expected = plain.ask(prompts, 250, 0.7)
    lucky.texts = [[*prompt, *answer] for prompt, answer in zip(prompts, expected, strict=True)]
    assert drafting.ask(prompts, 250, 0.7) == expected
    assert drafting.n_drafted > drafting.n_accepted > 0
    assert drafting.n_preempted > 0
    assert drafting.warnings == []


@EACH
def test_what_a_head_with_random_weights_drafts_changes_no_token(
    load_with_head: LoadMade, make_context: MakeContext, make_pair: MakePair, kind: made_architectures.Kind
) -> None:
    plain, pair = served(make_context(load_with_head(kind), **SIZES)), make_pair(kind)
    runner: Any = LlamaRunner(pair.head._model, pair.head)
    drafting = served(pair.model, draft=LoadedDraft(runner, FREE_ROWS, pair.hidden, min_probability=0.0))
    prompts = [some(seed, 50) for seed in range(N_SLOTS)]
    assert drafting.ask(prompts, 200, 0.7) == plain.ask(prompts, 200, 0.7)
    assert drafting.n_drafted > 0
    assert drafting.warnings == []
