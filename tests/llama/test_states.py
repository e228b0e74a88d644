"""Recurrent states on the real library: a slot that begins at a checkpoint goes on as one that has computed all."""

from collections.abc import Callable, Sequence
from random import Random

import numpy as np
import pytest

from tests.llama.conftest import GREEDY, LoadMade, LoadRandom, MakeContext
from tests.llama.random_models import HYBRID, PLAIN
from tests.llama.served import Served
from tools import made_architectures
from worker.engine.checkpoints import Stops
from worker.engine.config import EngineConfig
from worker.engine.step import Slice
from worker.llama.context import Context
from worker.llama.invariance import has_own_products
from worker.llama.runner import LlamaRunner
from worker.server.saved.copies import SavedCheckpoint
from worker.wire.jobs import JobKey, SamplingParams, SlotId, TokenId

pytestmark = pytest.mark.model

MADE = (*made_architectures.RECURRENT, *made_architectures.HYBRIDS)
KINDS = pytest.mark.parametrize("kind", MADE, ids=str)
NOT_REPEATABLE = "kimi-linear"
"""llama.cpp has no flash attention for its latent cells, so that sums depend on the number of cells."""
N_CELLS = 2048
SIZES = {"n_ctx": N_CELLS, "n_batch": 512, "n_ubatch": 64, "n_seq_max": 3}
PLENTY = 2**26
ROUNDING = 0.05
"""Answers differ by this much in a log-probability where a token was computed with others, and not alone."""

Tokens = list[TokenId]


def some_tokens(seed: int, n: int) -> Tokens:
    chance = Random(seed)
    return [TokenId(chance.randrange(3, 250)) for _ in range(n)]


# ── the memory ───────────────────────────────────────────────────────────────────────────────────


def computed(context: Context, slot: int, tokens: Tokens, edges: Sequence[int]) -> bytes:
    """Compute the slot's next tokens in slices up to the edges, and return the logits after the last."""
    rows = []
    for end in edges:
        held = context.kv.n_cells(SlotId(slot))
        context.decode([Slice(SlotId(slot), held, tokens[held:end], GREEDY)])
        rows.append(context.rows().tobytes())
    return rows[-1]


def are_same(found: bytes, expected: bytes) -> bool:
    """True if the rows have the same bits, or nearly the same numbers where sums depend on the place of cells."""
    if has_own_products():
        return found == expected
    return np.allclose(np.frombuffer(found, np.float32), np.frombuffer(expected, np.float32), atol=0.1)


@KINDS
def test_a_prompt_split_anywhere_goes_on_from_a_copy_bit_for_bit(
    load_made: LoadMade, make_context: MakeContext, kind: made_architectures.Kind
) -> None:
    model, tokens = load_made(kind), some_tokens(1, 90)
    for split in (1, 2, 17, 63, 64, 65, 88):
        whole = make_context(model, **SIZES)
        edges = [*range(split, 88, 64), 88, 89, 90]
        expected = computed(whole, 0, tokens, edges)
        context = make_context(model, **SIZES)
        computed(context, 0, tokens, [split])
        cells, state = context.kv.save(SlotId(0), 0), context.kv.checkpoint(SlotId(0))
        computed(context, 0, tokens, edges[1:])
        context.kv.load(SlotId(1), [cells], split, state)
        assert are_same(computed(context, 1, tokens, edges[1:] or [90]), expected)
        context.kv.share(SlotId(0), SlotId(2), split, state)
        assert are_same(computed(context, 2, tokens, edges[1:] or [90]), expected)
        assert context.kv.count_tokens() == [90, 90, 90]
        context.close()
        whole.close()


@KINDS
def test_a_slot_gives_cells_and_state_to_another_and_both_go_on_apart(
    load_made: LoadMade, make_context: MakeContext, kind: made_architectures.Kind
) -> None:
    model = load_made(kind)
    one, other = some_tokens(1, 50), [*some_tokens(1, 40), *some_tokens(2, 10)]
    alone = make_context(model, **SIZES)
    expected = [computed(alone, slot, tokens, [40, 50]) for slot, tokens in ((0, one), (1, other))]
    context = make_context(model, **SIZES)
    computed(context, 0, one, [40])
    context.kv.share(SlotId(0), SlotId(1), 40)
    assert context.kv.n_cells_used == 40
    assert [computed(context, slot, tokens, [50]) for slot, tokens in ((0, one), (1, other))] == expected


def test_cells_move_together_and_states_stay(load_random: LoadRandom, make_context: MakeContext) -> None:
    """Slots come and go in so few cells that those of others are moved again and again."""
    model, chance = load_random(HYBRID), Random(3)
    context, alone = make_context(model, **{**SIZES, "n_ctx": 256}), make_context(model, **SIZES)
    told: list[Tokens] = [[], [], []]
    edges: list[list[int]] = [[], [], []]
    n_moved = 0
    for _ in range(150):
        slot = chance.randrange(3)
        room = context.kv.n_free_cells
        if told[slot] and (chance.random() < 0.2 or room < 40):
            context.kv.trim(SlotId(slot), 0)
            told[slot], edges[slot] = [], []
        else:
            told[slot] = [*told[slot], *some_tokens(chance.randrange(10**6), chance.choice((1, 7, 33)))]
            edges[slot] = [*edges[slot], len(told[slot])]
            n_before = context.kv._n_forgotten
            found = computed(context, slot, told[slot], edges[slot][-1:])
            n_moved += context.kv._n_forgotten < n_before
            alone.kv.clear()
            assert found == computed(alone, 0, told[slot], edges[slot])
        assert context.kv.count_tokens() == [len(tokens) for tokens in told]
    assert n_moved > 3


def test_what_does_not_go_together_is_refused(load_random: LoadRandom, make_context: MakeContext) -> None:
    context, plain = make_context(load_random(HYBRID), **SIZES), make_context(load_random(PLAIN), **SIZES)
    tokens = some_tokens(1, 30)
    computed(context, 0, tokens, [20])
    cells, state = context.kv.save(SlotId(0), 0), context.kv.checkpoint(SlotId(0))
    computed(context, 0, tokens, [30])
    with pytest.raises(RuntimeError, match="cannot keep the first 20 cells of slot 0 alone"):
        context.kv.trim(SlotId(0), 20)
    computed(plain, 0, tokens, [20])
    one, other = SlotId(0), SlotId(1)
    uses: dict[str, Callable[[], object]] = {
        "begins with 20 tokens needs the state after them": lambda: context.kv.share(one, other, 20),
        "a state after 20 tokens; 10 are needed": lambda: context.kv.load(other, [cells], 10, state),
        "slot 1 has 0 cells": lambda: context.kv.checkpoint(other),
        "slot 0 has no recurrent state": lambda: plain.kv.checkpoint(one),
        "this memory has no recurrent state": lambda: plain.kv.share(one, other, 20, state),
    }
    for message, use in uses.items():
        with pytest.raises(AssertionError, match=message):
            use()
    assert context.kv.count_tokens() == [30, 0, 0]


# ── the engine ───────────────────────────────────────────────────────────────────────────────────


def served(context: Context, *, is_fixed: bool = False, caches: bool = True, n_slots: int = 3) -> Served:
    config = EngineConfig(
        n_slots=n_slots,
        n_cells=N_CELLS,
        context_length=N_CELLS,
        chunk=64,
        is_deterministic=is_fixed,
        prefix_cache_bytes=PLENTY if caches else 0,
        stops=Stops(stride=256, grain=64 if is_fixed else 1),
    )
    return Served(LlamaRunner(context._model, context), config, SamplingParams(seed=0, logprobs=3, ignore_eos=True))


def first_logprobs(served: Served) -> list[float]:
    return [answer[0].token.logprob for answer in served.generated.values()]


@KINDS
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_with_fixed_steps_a_conversation_from_checkpoints_is_the_same_bits(
    load_made: LoadMade, make_context: MakeContext, kind: made_architectures.Kind, temperature: float
) -> None:
    model = load_made(kind)
    kept, fresh = (served(make_context(model, **SIZES), is_fixed=True, caches=caches) for caches in (True, False))
    told: Tokens = []
    for turn in range(6):
        told = [*told, *some_tokens(turn, 100)]
        [answer], _ = (each.ask([told], 30, temperature) for each in (kept, fresh))
        assert kept.generated == fresh.generated
        told = [*told, *answer]
    assert kept.n_cached[JobKey(5)] >= 5 * 100
    assert not any(fresh.n_cached.values())


@KINDS
def test_a_conversation_computes_only_what_is_new(
    load_made: LoadMade, make_context: MakeContext, kind: made_architectures.Kind
) -> None:
    """The answers are near those from zero: a token that was drawn was computed alone."""
    model = load_made(kind)
    kept, fresh = (served(make_context(model, **SIZES), caches=caches) for caches in (True, False))
    told: Tokens = []
    for turn in range(6):
        told = [*told, *some_tokens(turn, 100)]
        [answer], _ = (each.ask([told], 30) for each in (kept, fresh))
        assert kept.n_cached[JobKey(turn)] == max(0, len(told) - 101)
        told = [*told, *answer]
    assert first_logprobs(kept) == pytest.approx(first_logprobs(fresh), abs=ROUNDING)


@KINDS
def test_jobs_with_a_common_beginning_share_it_and_jobs_that_pause_go_on(
    load_made: LoadMade, make_context: MakeContext, kind: made_architectures.Kind
) -> None:
    """Seven at once for two slots, with answers of two lengths; alone each has the same first tokens."""
    model = load_made(kind)
    head = some_tokens(1, 300)
    prompts = [[*head, *some_tokens(2 + i, 20)] for i in range(7)]
    alone = served(make_context(model, **SIZES), caches=False)
    for prompt in prompts:
        alone.ask([prompt], 120)
    beside = served(make_context(model, **SIZES), n_slots=2)
    beside.ask(prompts[:4], 400)
    beside.ask(prompts[4:], 120)
    assert beside.n_preempted > 0
    assert sum(beside.n_cached.values()) >= 5 * 300
    if has_own_products() or "moe" not in kind.architecture:
        # Else sums have another order beside other rows, and another expert may win a near-tie.
        assert first_logprobs(beside) == pytest.approx(first_logprobs(alone), abs=ROUNDING)


def test_a_state_is_a_copy_that_the_next_steps_do_not_change(
    load_random: LoadRandom, make_context: MakeContext
) -> None:
    context = make_context(load_random(HYBRID), **SIZES)
    computed(context, 0, some_tokens(1, 30), [20])
    state = context.kv.checkpoint(SlotId(0))
    assert isinstance(state, SavedCheckpoint)
    before = np.frombuffer(state.items, np.uint8).copy()
    computed(context, 0, some_tokens(1, 30), [30])
    assert (np.frombuffer(state.items, np.uint8) == before).all()
    assert state.n_bytes == context.kv.n_state_bytes
