"""Wrong drafts are taken from recurrent states: whatever is drafted, a slot goes on as one that has had no drafts."""

from random import Random
from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import replace

from tests.llama.conftest import GREEDY, LoadMade, MakeContext
from tests.llama.served import Served
from tools import made_architectures
from worker.engine.backend import LoadedDraft, Runner
from worker.engine.checkpoints import Stops
from worker.engine.config import EngineConfig
from worker.engine.step import Sampled, Slice, Step
from worker.llama.context import Context
from worker.llama.invariance import has_own_products
from worker.llama.runner import LlamaRunner
from worker.models.upstream.architectures import HYBRIDS_OF_SEVERAL_PARTS, WITH_SNAPSHOTS
from worker.wire.jobs import JobKey, Logprob, SlotId, TokenId, TopToken

pytestmark = pytest.mark.model

MADE = [made_architectures.KINDS[name] for name in WITH_SNAPSHOTS if name not in HYBRIDS_OF_SEVERAL_PARTS]
KINDS = pytest.mark.parametrize("kind", MADE, ids=str)
N_SNAPSHOTS = 3
N_CELLS = 2048
SIZES = {"n_ctx": N_CELLS, "n_batch": 512, "n_ubatch": 64, "n_seq_max": 4}
ROUNDING = 0.2
"""Logits differ by this much where a token was computed with others, and not alone: experts are chosen by numbers that
may be next to equal. A wrong state changes them by more than 1."""
CHEAP_ROWS = ((1, 1.0), (32, 1.1))
FREE_ROWS = ((1, 1e-9), (32, 1.1e-9))
PLENTY = 2**26

Tokens = list[TokenId]


def words(seed: int, n: int) -> Tokens:
    """Tokens of few kinds, which repeat."""
    return [TokenId(token) for token in Random(seed).choices(range(3, 40), k=n)]


def next_row(context: Context, slot: SlotId, token: TokenId) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the logits after one more token."""
    context.decode([Slice(slot, context.kv.n_cells(slot), [token], GREEDY)])
    return context.rows().copy()


class Pair:
    """Two contexts that are told the same: one with wrong drafts, and one token by token."""

    def __init__(self, drafting: Context, plain: Context, seed: int) -> None:
        self.chance = Random(seed)
        self.drafting, self.plain = drafting, plain
        self.told: dict[SlotId, Tokens] = {SlotId(slot): self._some(20 + slot) for slot in range(3)}
        for slot, tokens in self.told.items():
            for context in (drafting, plain):
                context.decode([Slice(slot, 0, tokens, GREEDY)])

    def _some(self, n: int) -> Tokens:
        return [TokenId(self.chance.randrange(3, 250)) for _ in range(n)]

    def step(self) -> list[SlotId]:
        """Compute a token of each slot, and for some as many drafts, of which some are right. Return those slots."""
        n_drafts = self.chance.randint(1, N_SNAPSHOTS)
        takers = [slot for slot in self.told if self.chance.random() < 0.5]
        n_right = {slot: self.chance.randint(0, n_drafts) if slot in takers else 0 for slot in self.told}
        new = {slot: self._some(1 + n_right[slot]) for slot in self.told}
        plain = [Slice(slot, len(self.told[slot]), new[slot], GREEDY) for slot in self.told if slot not in takers]
        tried = {slot: [*new[slot], *self._some(n_drafts - n_right[slot])] for slot in takers}
        drafted = [Slice(slot, len(self.told[slot]), tried[slot], GREEDY, n_drafts=n_drafts) for slot in takers]
        self.drafting.decode([*plain, *drafted])
        for slot, tokens in new.items():
            for token in tokens:
                next_row(self.plain, slot, token)
            self.told[slot] = self.told[slot] + tokens
            self.drafting.kv.trim(slot, len(self.told[slot]))
        return takers

    def check(self, slot: SlotId) -> None:
        """Let both go on with a token more."""
        [token] = self._some(1)
        found, expected = (next_row(context, slot, token) for context in (self.drafting, self.plain))
        assert found == pytest.approx(expected, abs=ROUNDING)


@KINDS
def test_slots_go_on_without_their_wrong_drafts(
    load_made: LoadMade, make_context: MakeContext, kind: made_architectures.Kind
) -> None:
    """Alone and beside others, moved, shared, copied out, and in cells that are few enough to be moved."""
    model, spare = load_made(kind), SlotId(3)
    contexts = [make_context(model, **SIZES, n_snapshots=n) for n in (N_SNAPSHOTS, 0)]
    assert [context.kv.max_undone for context in contexts] == [N_SNAPSHOTS, 0]
    pair = Pair(contexts[0], contexts[1], seed=1)
    for turn in range(40):
        slot = pair.chance.choice(pair.step() or [SlotId(0)])
        n_tokens = len(pair.told[slot])
        if turn % 4 == 0:
            state, cells = contexts[0].kv.checkpoint(slot), contexts[0].kv.save(slot, 0)
            assert state.n_tokens == n_tokens
            contexts[0].kv.load(spare, [cells], n_tokens, state)
        if turn % 4 == 1:
            contexts[0].kv.share(slot, spare, n_tokens)
        if turn % 4 < 2:
            contexts[1].kv.share(slot, spare, n_tokens)
            pair.check(spare)
            for context in contexts:
                context.kv.trim(spare, 0)
        for context in contexts:
            assert context.kv.count_tokens() == [*map(len, pair.told.values()), 0]
        if turn == 20:
            contexts[0].kv._move_together()
    for slot in pair.told:
        pair.check(slot)


def test_what_has_no_snapshot_is_not_taken_back(load_made: LoadMade, make_context: MakeContext) -> None:
    """None of what a slot had before the last step; of those before the last slices of one length nothing."""
    context = make_context(load_made(MADE[2]), **SIZES, n_snapshots=N_SNAPSHOTS)
    tokens = [TokenId(i) for i in range(10, 30)]
    first, second = SlotId(0), SlotId(1)
    refusal = pytest.raises(RuntimeError, match="cannot keep the first")
    context.decode([Slice(first, 0, tokens[:8], GREEDY)])
    with refusal:
        context.kv.trim(first, 4)
    context.kv.trim(first, 5)
    with refusal:
        context.kv.trim(first, 4)
    context.decode([Slice(first, 5, tokens[:3], GREEDY), Slice(second, 0, tokens[:2], GREEDY)])
    with refusal:
        context.kv.trim(first, 7)
    context.kv.trim(second, 1)
    context.decode([Slice(first, 8, tokens[:2], GREEDY)])
    context.kv.share(first, SlotId(2), 10)
    with refusal:
        context.kv.trim(first, 9)
    assert context.kv.count_tokens() == [10, 1, 10, 0]


# ── the engine ───────────────────────────────────────────────────────────────────────────────────


def served(context: Context, *, n_slots: int = 3, draft: LoadedDraft | None = None) -> Served:
    config = EngineConfig(
        n_slots=n_slots,
        n_cells=N_CELLS,
        context_length=N_CELLS,
        chunk=64,
        prefix_cache_bytes=PLENTY,
        row_costs=CHEAP_ROWS,
        has_own_text=draft is None,
        history_bytes=16 * 4000 if draft is None else 0,
        stops=Stops(stride=256),
    )
    return Served(LlamaRunner(context._model, context), config, draft=draft)


DENSE = pytest.mark.parametrize("kind", [kind for kind in MADE if not kind.has_experts], ids=str)
"""Experts are chosen by numbers that may be next to equal, and then a token is another one."""


@DENSE
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_conversation_has_the_same_tokens_with_and_without_drafts(
    load_made: LoadMade, make_context: MakeContext, kind: made_architectures.Kind, temperature: float
) -> None:
    """Each turn begins at the checkpoint after the last one's answer, whatever was drafted at its end."""
    drafting, plain = (served(make_context(load_made(kind), **SIZES, n_snapshots=n)) for n in (N_SNAPSHOTS, 0))
    told = list[TokenId]()
    for turn in range(6):
        told = [*told, *words(turn, 60)]
        [expected] = plain.ask([told], 60 + turn, temperature)
        [answer] = drafting.ask([told], 60 + turn, temperature, [expected])
        assert answer == expected
        assert drafting.n_cached[JobKey(turn)] == plain.n_cached[JobKey(turn)]
        told = [*told, *answer]
    assert drafting.n_drafted > drafting.n_accepted > 0
    assert drafting.n_cached[JobKey(5)] > 500
    assert not plain.n_drafted


@DENSE
def test_so_have_jobs_that_share_a_beginning_and_pause(
    load_made: LoadMade, make_context: MakeContext, kind: made_architectures.Kind
) -> None:
    contexts = (make_context(load_made(kind), **SIZES, n_snapshots=n) for n in (N_SNAPSHOTS, 0))
    drafting, plain = (served(context, n_slots=2) for context in contexts)
    prompts = [[*words(2, 200), *words(10 + i, 20)] for i in range(5)]
    expected = plain.ask(prompts, 250, 0.7)
    assert drafting.ask(prompts, 250, 0.7, expected) == expected
    assert drafting.n_drafted > drafting.n_accepted > 0
    assert drafting.n_preempted > 0


class Sure:
    """A runner that finds each token that it draws certain, because models with random weights are sure of none."""

    def __init__(self, runner: LlamaRunner) -> None:
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def run(self, step: Step) -> list[Sampled]:
        return [replace(each, logprob=Logprob(TopToken("", each.token, 0.0), ())) for each in self._runner.run(step)]


@DENSE
def test_a_draft_model_with_recurrent_state_changes_no_token(
    load_made: LoadMade, make_context: MakeContext, kind: made_architectures.Kind
) -> None:
    """It is the model itself, so it is nearly always right; drawn tokens are others than its own, some of them."""
    model, n_slots = load_made(kind), 2
    context = make_context(model, **{**SIZES, "n_seq_max": 2 * n_slots})
    draft = LoadedDraft(cast(Runner, Sure(LlamaRunner(model, context))), FREE_ROWS)
    plain = served(make_context(model, **SIZES), n_slots=n_slots)
    drafting = served(make_context(model, **SIZES, n_snapshots=N_SNAPSHOTS), n_slots=n_slots, draft=draft)
    prompts = [words(seed, 100) for seed in range(5)]
    for temperature in (0.0, 0.1):
        expected = plain.ask(prompts, 150, temperature)
        # Where sums depend on the rows beside, random weights leave near-ties that fall the other way.
        assert drafting.ask(prompts, 150, temperature) == expected or not has_own_products()
    assert drafting.n_accepted > 100
    assert drafting.warnings == []
    assert context.kv.count_tokens()[n_slots:] == [0] * n_slots
