"""Cells shared, saved and loaded on the real library: counts are right, and no job's logits change by a bit.

A company of slots does at random what an engine can ask for, in so little memory that cells are moved all the time.
"""

from collections.abc import Callable
from random import Random

import pytest

from tests.llama.company import N_SLOTS, Company, n_used, positions
from tests.llama.conftest import LoadRandom, MakeContext, fill
from tests.llama.random_models import GEMMA, MROPE, PLAIN, SLIDING, SLIDING_ONLY, Kind
from worker.llama.context import Context
from worker.models.upstream.numbers import MAX_SEQ_IDS
from worker.server.saved.copies import Layout
from worker.wire.jobs import SlotId

pytestmark = pytest.mark.model

N_CELLS = 256
SIZES = {"n_ctx": N_CELLS, "n_batch": 512, "n_ubatch": 16, "n_seq_max": N_SLOTS, "type_k": "bf16"}
ROUNDING = 1.0
"""Sums of f16 and activations of 8 bits move a logit of these models by 0.5 at most, another token by 3 and more."""


@pytest.fixture
def company_of(load_random: LoadRandom, make_context: MakeContext) -> Callable[..., Company]:
    def make(seed: int, kind: Kind = PLAIN, n_slots: int = N_SLOTS, **changes: int | str) -> Company:
        model, sizes = load_random(kind), {**SIZES, **changes}
        context, alone = (make_context(model, **sizes | {"n_seq_max": n}) for n in (n_slots, N_SLOTS))
        return Company(context, alone, Random(seed), model.n_vocab)

    return make


CompanyOf = Callable[..., Company]


@pytest.mark.parametrize(
    ("seed", "kind"), [(1, PLAIN), (2, PLAIN), (3, PLAIN), (8, SLIDING), (8, SLIDING_ONLY), (8, GEMMA)], ids=str
)
def test_no_slot_notices_what_others_share_save_load_and_forget(company_of: CompanyOf, seed: int, kind: Kind) -> None:
    """Windows of 8 tokens in sequences of more than 200: most of what is shared, the window has passed long ago."""
    company = company_of(seed, kind)
    company.live(500 if kind is PLAIN else 300)
    assert company.n_compared > 150
    assert company.n_aborted_in_part > 0


def test_nor_beyond_the_cells_where_a_lone_row_is_split_over_threads(company_of: CompanyOf) -> None:
    """llama.cpp would split it from 512 cells on, with K and V of one type."""
    company = company_of(7, n_ctx=2048, n_batch=2048, n_threads=2)
    company.longest = 600
    company.live(60)


def test_nor_where_a_position_is_several_numbers(company_of: CompanyOf) -> None:
    company = company_of(5, MROPE)
    company.layout = Layout(is_mrope=True)
    company.live(250)


WITHOUT_ORDER = {PLAIN: MAX_SEQ_IDS - 1, SLIDING: MAX_SEQ_IDS // 2 - 1}
"""So many slots leave but one seq_id, and then the memory is as on a GPU."""


@pytest.mark.parametrize("kind", [PLAIN, SLIDING], ids=str)
@pytest.mark.parametrize("is_ordered", [True, False])
def test_where_v_lies_transposed_or_cells_have_no_order_they_notice_no_more_than_rounding(
    company_of: CompanyOf, kind: Kind, *, is_ordered: bool
) -> None:
    """The bits depend on the other jobs without flash attention, but the order of cells does not. New cells go into
    holes in an unordered memory, around which lie cells that a window has passed."""
    changes = {"flash_attn": "off"} if is_ordered else {"n_slots": WITHOUT_ORDER[kind]}
    company = company_of(4, kind, **changes)
    company.is_ordered, company.tolerance = is_ordered, ROUNDING
    company.live(250)


# ── what chance might miss ───────────────────────────────────────────────────────────────────────


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
