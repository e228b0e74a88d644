"""Cells shared, saved and loaded on the real library: counts are right, and no job's logits change by a bit.

A company of slots does at random what an engine can ask for, in so little memory that cells are moved all the time.
"""

from random import Random

import pytest

from tests.llama.company import N_SLOTS, Company
from tests.llama.conftest import LoadRandom, MakeContext
from tests.llama.random_models import GEMMA, MROPE, PLAIN, SLIDING, SLIDING_ONLY, Kind
from tests.llama.seq_states import n_used, positions
from worker.engine.step import Slice
from worker.llama.context import Context
from worker.llama.model import Model
from worker.models.upstream.numbers import MAX_SEQ_IDS
from worker.server.saved.copies import Layout
from worker.wire.jobs import SlotId, TokenId

pytestmark = pytest.mark.model

N_CELLS = 256
SIZES = {"n_ctx": N_CELLS, "n_batch": 512, "n_ubatch": 16, "n_seq_max": N_SLOTS, "type_k": "bf16"}
ROUNDING = 1.0
"""Sums of f16 and activations of 8 bits move a logit of these models by 0.5 at most, another token by 3 and more."""


def company_of(
    model: Model, make_context: MakeContext, seed: int, n_slots: int = N_SLOTS, **changes: int | str
) -> Company:
    sizes = {**SIZES, **changes}
    context = make_context(model, **sizes | {"n_seq_max": n_slots})
    alone = make_context(model, **sizes)
    return Company(context, alone, Random(seed), model.n_vocab, is_ordered=n_slots + 2 <= MAX_SEQ_IDS)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_slot_notices_what_others_share_save_load_and_forget(
    load_random: LoadRandom, make_context: MakeContext, seed: int
) -> None:
    company = company_of(load_random(PLAIN), make_context, seed)
    company.live(500)
    assert company.n_compared > 150
    assert company.n_aborted_in_part > 0


def test_nor_beyond_the_cells_where_a_lone_row_is_split_over_threads(
    load_random: LoadRandom, make_context: MakeContext
) -> None:
    """llama.cpp would split it from 512 cells on, with K and V of one type."""
    company = company_of(load_random(PLAIN), make_context, 7, n_ctx=2048, n_batch=2048, n_threads=2)
    company.longest = 600
    company.live(60)


def test_where_v_lies_transposed_they_notice_no_more_than_rounding(
    load_random: LoadRandom, make_context: MakeContext
) -> None:
    """The bits depend on the other jobs without flash attention, but the order of cells does not."""
    company = company_of(load_random(PLAIN), make_context, 4, flash_attn="off")
    company.tolerance = ROUNDING
    company.live(250)


def test_nor_where_a_position_is_several_numbers(load_random: LoadRandom, make_context: MakeContext) -> None:
    company = company_of(load_random(MROPE), make_context, 5)
    company.layout = Layout(is_mrope=True)
    company.live(250)


def test_in_a_memory_without_order_they_notice_no_more_than_rounding(
    load_random: LoadRandom, make_context: MakeContext
) -> None:
    """This is as on a GPU. The reason here is that the slots leave but one seq_id."""
    company = company_of(load_random(PLAIN), make_context, 6, n_slots=MAX_SEQ_IDS - 1)
    company.tolerance = ROUNDING
    company.live(250)


@pytest.mark.parametrize("kind", [SLIDING, SLIDING_ONLY, GEMMA], ids=str)
def test_nor_where_layers_have_sliding_windows(load_random: LoadRandom, make_context: MakeContext, kind: Kind) -> None:
    """Windows of 8 tokens in sequences of more than 200: most of what is shared, the window has passed long ago."""
    company = company_of(load_random(kind), make_context, 8)
    company.live(300)
    assert company.n_compared > 150
    assert company.n_aborted_in_part > 0


@pytest.mark.parametrize(
    ("n_slots", "flash_attn"), [(MAX_SEQ_IDS // 2 - 1, "on"), (N_SLOTS, "off")], ids=["without order", "V transposed"]
)
def test_with_sliding_windows_too_they_notice_no_more_than_rounding(
    load_random: LoadRandom, make_context: MakeContext, n_slots: int, flash_attn: str
) -> None:
    """New cells go into holes in an unordered memory, around which lie cells that the window has passed."""
    company = company_of(load_random(SLIDING), make_context, 9, n_slots=n_slots, flash_attn=flash_attn)
    company.is_ordered = flash_attn == "off"
    company.tolerance = ROUNDING
    company.live(250)


# ── what chance might miss ───────────────────────────────────────────────────────────────────────


def fill(context: Context, slot: int, n_tokens: int) -> None:
    held = context.kv.n_cells(SlotId(slot))
    context.decode([Slice(SlotId(slot), held, [TokenId(9 + (held + i) % 200) for i in range(n_tokens)])])


@pytest.fixture
def context(load_random: LoadRandom, make_context: MakeContext) -> Context:
    return make_context(load_random(PLAIN), **SIZES)


def test_wrong_guesses_behind_which_nothing_lies_are_free_at_once(context: Context) -> None:
    fill(context, 1, 10)
    fill(context, 0, 10)
    for _ in range(20):
        fill(context, 0, 5)
        context.kv.trim(SlotId(0), context.kv.n_cells(SlotId(0)) - 4)
        assert n_used(context) == context.kv.n_cells_used


def test_of_cells_among_others_only_the_last_are_free_at_once(context: Context) -> None:
    """The first cells of slot 0 lie before those of slot 1: a hole there would be filled out of order."""
    fill(context, 0, 10)
    fill(context, 1, 10)
    fill(context, 0, 7)
    context.kv.trim(SlotId(0), 6)
    assert (context.kv.n_cells_used, n_used(context)) == (16, 20)


def test_cells_that_were_the_newest_are_not_once_a_sharer_has_kept_them(context: Context) -> None:
    fill(context, 0, 30)
    context.kv.share(SlotId(0), SlotId(1), 25)
    context.kv.trim(SlotId(0), 15)
    fill(context, 0, 1)
    context.kv.trim(SlotId(1), 0)
    context.kv.trim(SlotId(0), 5)
    assert (context.kv.n_cells_used, n_used(context)) == (5, 25)
    fill(context, 0, 30)
    assert positions(context, 0) == list(range(35))


def test_what_is_shared_stays_with_the_last_slot_that_has_it(context: Context) -> None:
    fill(context, 0, 50)
    context.kv.share(SlotId(0), SlotId(1), 40)
    context.kv.share(SlotId(1), SlotId(2), 40)
    assert context.kv.n_cells_used == 50
    context.kv.trim(SlotId(0), 0)
    context.kv.trim(SlotId(1), 10)
    assert context.kv.n_cells_used == 40
    context.kv.trim(SlotId(2), 0)
    assert context.kv.n_cells_used == 10


def test_shared_cells_are_moved_once_and_stay_shared(context: Context) -> None:
    fill(context, 3, 100)
    fill(context, 0, 50)
    context.kv.share(SlotId(0), SlotId(1), 50)
    fill(context, 0, 3)
    fill(context, 1, 4)
    context.kv.trim(SlotId(3), 0)
    fill(context, 2, context.kv.n_free_cells)
    assert n_used(context) == context.kv.n_cells_used == N_CELLS
    assert [positions(context, slot) for slot in (0, 1)] == [list(range(53)), list(range(54))]


def test_loading_may_have_to_move_others_first(context: Context) -> None:
    fill(context, 0, 100)
    saved = context.kv.save(SlotId(0), 0)
    fill(context, 1, 100)
    context.kv.trim(SlotId(0), 0)
    context.kv.load(SlotId(2), [saved], 100)
    assert n_used(context) == context.kv.n_cells_used == 200


# ── refused ──────────────────────────────────────────────────────────────────────────────────────


def test_what_cannot_be_shared_is_refused(context: Context) -> None:
    fill(context, 0, 10)
    fill(context, 1, 3)
    for source, target, n_tokens in [(0, 1, 5), (0, 0, 5), (0, 2, 11), (0, 2, 0), (3, 2, 1), (0, 4, 1), (-1, 2, 1)]:
        with pytest.raises(AssertionError, match=r"slot -?\d"):
            context.kv.share(SlotId(source), SlotId(target), n_tokens)
    assert context.kv.n_cells_used == 13


def test_what_is_not_there_cannot_be_saved(context: Context) -> None:
    fill(context, 0, 10)
    for slot, start in [(0, 10), (0, -1), (1, 0), (4, 0), (-1, 0)]:
        with pytest.raises(AssertionError, match="slot"):
            context.kv.save(SlotId(slot), start)


def test_what_does_not_fit_cannot_be_loaded(context: Context) -> None:
    fill(context, 0, 100)
    first, rest = context.kv.save(SlotId(0), 0).split(40)
    fill(context, 1, 140)
    for slot, parts, n_tokens, message in [
        (0, [first], 5, "slot 0 has cells already"),
        (2, [first], 0, "0 saved cells"),
        (2, [first], 17, "17 saved cells and 16 free ones"),
        (2, [rest], 5, "from position 40 on do not follow 0 others"),
        (2, [], 5, "5 cells are asked for; the saved ones are 0"),
        (4, [first], 5, "slot 4"),
    ]:
        with pytest.raises((AssertionError, ValueError), match=message):
            context.kv.load(SlotId(slot), parts, n_tokens)
    assert context.kv.n_cells_used == 240
    context.kv.load(SlotId(2), [first, rest], 16)
    assert context.kv.n_free_cells == 0
