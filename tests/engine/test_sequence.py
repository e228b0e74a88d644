"""A sequence's states, and how its tokens are cut into slices."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.channels import ChannelText
from worker.engine.sequence import Sequence, State
from worker.engine.step import Slice
from worker.wire.jobs import JobKey, SamplingParams, SlotId, TokenId

LAW = settings(max_examples=200)
SAMPLING = SamplingParams(seed=7)


DRAWN = {
    State.WAITING: {State.FOLLOW, State.DONE},
    State.FOLLOW: {State.PREFILL, State.REPORT, State.WAITING, State.DONE},
    State.REPORT: {State.PREFILL, State.WAITING, State.DONE},
    State.PREFILL: {State.DECODE, State.WAITING, State.DONE},
    State.DECODE: {State.WAITING, State.DONE},
    State.DONE: set(),
}
"""The arrows of the module's drawing."""


def sequence(n_prompt: int, slot: int = 0) -> Sequence:
    prompt = [TokenId(100 + i) for i in range(n_prompt)]
    made = Sequence(JobKey(1), prompt, 4, SAMPLING, ChannelText(()))
    made.slot = SlotId(slot)
    return made


def prefill_slices(made: Sequence, n_most: int, grain: int) -> list[Slice]:
    """All slices of the prompt, each computed before the next is asked for."""
    slices = []
    while (slice_ := made.prefill_slice(n_most, grain)) is not None:
        slices.append(slice_)
        made.n_computed += len(slice_.tokens)
    return slices


@pytest.mark.parametrize("before", State)
@pytest.mark.parametrize("after", State)
def test_the_drawn_moves_are_legal_and_any_other_is_refused_and_changes_nothing(before: State, after: State) -> None:
    made = sequence(1)
    made.state = before
    if after in DRAWN[before]:
        made.move(after)
        assert made.state is after
    else:
        with pytest.raises(AssertionError, match=f"{before.name} -> {after.name}"):
            made.move(after)
        assert made.state is before


SIZES = st.integers(1, 40).flatmap(lambda grain: st.tuples(st.integers(grain, 80), st.just(grain)))
"""Most tokens of a slice, and what its end is a multiple of."""


@LAW
@given(n_prompt=st.integers(1, 100), sizes=SIZES, n_computed=st.integers(0, 99))
def test_the_prompts_slices_are_the_prompt_each_token_once_and_in_place(
    n_prompt: int, sizes: tuple[int, int], n_computed: int
) -> None:
    """Slices end at absolute multiples wherever prefill begins, and only the last token draws."""
    made, (n_most, grain) = sequence(n_prompt), sizes
    begin = made.n_computed = min(n_computed, n_prompt - 1)
    slices = prefill_slices(made, n_most, grain)
    assert [token for slice_ in slices for token in slice_.tokens] == made.prompt[begin:]
    assert slices[0].start == begin
    assert all(after.start == before.start + len(before.tokens) for before, after in pairwise(slices))
    assert all(slice_.start % grain == 0 for slice_ in slices[1:])
    assert all(n_most - grain < len(slice_.tokens) <= n_most for slice_ in slices[:-1])
    assert [slice_.sampling for slice_ in slices] == [None] * (len(slices) - 1) + [SAMPLING]


def test_there_is_no_slice_where_the_room_ends_before_the_next_multiple() -> None:
    made = sequence(100)
    made.n_computed = 17
    assert made.prefill_slice(6, 8) is None
    slice_ = made.prefill_slice(7, 8)
    assert slice_ is not None
    assert len(slice_.tokens) == 7


def test_a_decode_slice_is_the_newest_token_at_the_next_position_with_all_tokens_so_far() -> None:
    made = sequence(3, slot=5)
    made.n_computed = 4
    for token in (8, 9):
        made.append(TokenId(token))
    slice_ = made.decode_slice([TokenId(7), TokenId(6)])
    assert (slice_.slot, slice_.start, list(slice_.tokens), slice_.n_drafts) == (5, 4, [9, 7, 6], 2)
    assert (slice_.sampling, list(slice_.generated)) == (SAMPLING, [8, 9])
