"""The tests of drafts share step costs of machines, real and invented, and drafts that only their length describes."""

from itertools import accumulate, pairwise

from hypothesis import strategies as st

from worker.engine.drafting.pricing import NO_DRAFT, Draft
from worker.wire.jobs import TokenId

CPU = ((1, 7.5e-3), (2, 11e-3), (4, 19e-3), (8, 34e-3), (16, 66e-3))
"""A small model on two cores: a row computes for half as long as the weights take to read."""
GPU = ((1, 5e-3), (2, 5.05e-3), (8, 5.2e-3), (32, 6e-3), (80, 8e-3))
N_MOST = 16
RIGHT, WRONG = TokenId(1), TokenId(0)
MATCHES = st.sampled_from((1, 2, 5, 9, 16, 400))

Costs = tuple[tuple[int, float], ...]


def cheap(costs: Costs) -> Costs:
    """The costs of a model that is a twentieth as large."""
    return tuple((n, seconds / 20) for n, seconds in costs)


@st.composite
def row_costs(draw: st.DrawFn, n_rows: int = 24) -> Costs:
    """Any costs that rise: flat, straight, or with steps where a kernel's tile is full."""
    rises = draw(st.lists(st.sampled_from((0.0, 0.05, 0.5, 1.0, 3.0)), min_size=n_rows - 1, max_size=n_rows - 1))
    return tuple(enumerate(accumulate(rises, initial=1.0), 1))


def cost(costs: Costs, n_rows: int) -> float:
    for (n, n_s), (m, m_s) in pairwise(costs):
        if n <= n_rows <= m:
            return n_s + (m_s - n_s) * (n_rows - n) / (m - n)
    raise AssertionError(n_rows)


def draft_of(n_drafts: int, n_matched: int = 1) -> Draft:
    return Draft((RIGHT,) * n_drafts, n_matched) if n_drafts else NO_DRAFT
