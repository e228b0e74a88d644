"""Models whose memory cannot be cut: they are recognised, share and save nothing, and are served all the same."""

import numpy as np
import pytest

from tests.llama.conftest import GREEDY, LoadRandom, MakeContext, fill
from tests.llama.random_models import HYBRID, NAMED_ONLY, PLAIN, RECURRENT, SLIDING, WINDOW, Kind
from worker.engine.step import Slice, Step
from worker.llama.runner import LlamaRunner
from worker.models.upstream.numbers import MAX_SEQ_IDS
from worker.wire.jobs import SlotId, TokenId

pytestmark = pytest.mark.model

ROUNDING = 1.0
"""It is that of test_sharing.py: other places of cells move a logit by 0.5 at most, another token by 3 and more."""

UNCUT = pytest.mark.parametrize("kind", [SLIDING, RECURRENT, HYBRID], ids=str)
"""Made with `swa_full=False`, which is nothing to a recurrent one."""


@pytest.mark.parametrize(("kind", "n_slots"), [(PLAIN, MAX_SEQ_IDS), (SLIDING, MAX_SEQ_IDS // 2)], ids=str)
def test_without_a_seq_id_left_nothing_can_be_shared(
    load_random: LoadRandom, make_context: MakeContext, kind: Kind, n_slots: int
) -> None:
    """A sliding window takes two for each slot."""
    sizes = {"n_batch": 512, "n_ctx": 1024}
    assert make_context(load_random(kind), n_seq_max=n_slots - 1, **sizes).kv.can_share
    assert not make_context(load_random(kind), n_seq_max=n_slots, **sizes).kv.can_share


def test_what_cannot_be_cut_is_neither_shared_nor_saved(load_random: LoadRandom, make_context: MakeContext) -> None:
    plain = make_context(load_random(PLAIN))
    fill(plain, 0, 4)
    saved = plain.kv.save(SlotId(0), 0)
    runner = LlamaRunner(load_random(SLIDING), make_context(load_random(SLIDING), swa_full=False))
    runner.run(Step("prefill", (Slice(SlotId(0), 0, [TokenId(5)] * 4, GREEDY),)))
    assert not runner.kv.can_share
    kv, one, other = runner.kv, SlotId(0), SlotId(1)
    for use in (lambda: kv.share(one, other, 2), lambda: kv.save(one, 0), lambda: kv.load(other, [saved], 2)):
        with pytest.raises(AssertionError, match="memory cannot be cut"):
            use()
    assert runner.kv.n_free_cells == 508


@UNCUT
def test_it_is_served_next_to_others_and_after_them(
    load_random: LoadRandom, make_context: MakeContext, kind: Kind
) -> None:
    """Beyond the window, and in a slot that another job had."""
    model = load_random(kind)
    prompts = [[TokenId(3 + i % 200) for i in range(n)] for n in (4 * WINDOW, 3)]
    alone = [answer(LlamaRunner(model, make_context(model, swa_full=False)), {0: prompt})[0] for prompt in prompts]
    runner = LlamaRunner(model, make_context(model, swa_full=False))
    for slots in ((0, 1), (1, 0)):
        beside = answer(runner, dict(zip(slots, prompts, strict=True)))
        assert [beside[slot] for slot in slots] == alone
    assert runner.kv.n_free_cells == 512


def test_a_small_window_is_not_gone_back_behind_where_it_was_written_over(
    load_random: LoadRandom, make_context: MakeContext
) -> None:
    """The library would take the end away, and go on without what the window saw before it."""
    context = make_context(load_random(SLIDING), swa_full=False)
    fill(context, 0, 400)
    with pytest.raises(RuntimeError, match="slot 0 cannot go on from position 40"):
        context.kv.trim(SlotId(0), 40)
    assert context.kv.n_cells(SlotId(0)) == 400
    context.kv.trim(SlotId(0), 399)
    context.decode([Slice(SlotId(0), 399, [TokenId(3)], GREEDY)])
    again = context.rows()[0].copy()
    context.kv.trim(SlotId(0), 0)
    fill(context, 0, 399)
    context.decode([Slice(SlotId(0), 399, [TokenId(3)], GREEDY)])
    assert np.abs(context.rows()[0] - again).max() < ROUNDING


def test_a_window_that_no_layer_has_changes_nothing(load_random: LoadRandom, make_context: MakeContext) -> None:
    """EXAONE 4 names its window in sizes that do not use it."""
    context = make_context(load_random(NAMED_ONLY))
    fill(context, 0, 40)
    assert context.kv.save(SlotId(0), 5).n_tokens == 35


def answer(runner: LlamaRunner, prompts: dict[int, list[TokenId]], n_tokens: int = 8) -> dict[int, list[TokenId]]:
    """Greedy; the slots are empty again."""
    first = tuple(Slice(SlotId(slot), 0, prompt, GREEDY) for slot, prompt in prompts.items())
    drawn = {sampled.slot: [sampled.token] for sampled in runner.run(Step("prefill", first))}
    for i in range(n_tokens - 1):
        slices = [Slice(SlotId(slot), len(prompts[slot]) + i, own[-1:], GREEDY) for slot, own in drawn.items()]
        for sampled in runner.run(Step("decode", tuple(slices))):
            drawn[sampled.slot].append(sampled.token)
    for slot, prompt in prompts.items():
        assert runner.kv.count_tokens()[slot] == len(prompt) + n_tokens - 1
        runner.kv.trim(SlotId(slot), 0)
    assert not any(runner.kv.count_tokens())
    return {int(slot): tokens for slot, tokens in drawn.items()}
