"""The place where two answers part, and a check that a seed draws what was served."""

import random
from math import inf

import numpy as np
import pytest

from client.execute import Drawn, Top
from parity.answers import N_DRAWN, N_TOP, Parting, miss_at_parting, parting, parting_from, worst_draw
from tests.parity.made_answers import answer, row
from worker.engine.sampling.sample import log_probabilities, sample, uniform
from worker.wire.jobs import SamplingParams, narrow


def test_answers_part_at_their_first_difference_by_what_either_row_says() -> None:
    one = answer([row(1), row(2, {2: -1.0, 3: -1.25}), row(4)])
    other = answer([row(1), row(3, {3: -1.0, 2: -1.5}), row(9)])
    assert parting(one, other) == parting(other, one) == Parting(1, 0.5)
    assert parting(one, one) is None


def test_a_token_that_a_row_does_not_list_is_no_near_tie() -> None:
    one, other = answer([row(2, {2: -1.0})]), answer([row(3, {3: -1.0, 2: -1.0})])
    assert parting(one, other) == Parting(0, inf)


def test_an_end_is_a_choice_like_a_token() -> None:
    ended = answer([row(1)], stop_reason="EOS")
    went_on = answer([row(1), row(2, {2: -1.0, 0: -1.5})])
    assert parting(ended, went_on, ends={0}) == Parting(1, 0.5)
    assert parting(ended, went_on) == Parting(1, inf)
    assert parting(ended, answer([row(1)], stop_reason="EOS")) is None


def test_a_shorter_answer_without_an_end_parts() -> None:
    assert parting(answer([row(1)]), answer([row(1), row(2)])) == Parting(1, inf)


@pytest.mark.parametrize("expected", [(1, 2), (1, 2, 0, 8), (1, 2, 0)])
def test_what_was_expected_is_followed_up_to_its_own_end(expected: tuple[int, ...]) -> None:
    served = answer([row(1), row(2)], stop_reason="EOS")
    assert parting_from(served, expected, ends={0}) is None


def test_an_answer_leaves_what_was_expected_where_it_first_differs() -> None:
    served = answer([row(1), row(2, {2: -1.0, 7: -1.1})])
    found = parting_from(served, (1, 7))
    assert found is not None
    assert (found.position, round(found.gap, 9)) == (1, 0.1)
    assert parting_from(served, (1, 2, 3)) == Parting(2, inf)
    assert parting_from(answer([row(1)], stop_reason="EOS"), (1, 2, 3), ends={0}) == Parting(1, inf)


def test_text_that_was_never_shown_is_not_missed() -> None:
    assert parting_from(answer([row(1)], n_sampled=2), (1, 2)) is None


# ── the draw ─────────────────────────────────────────────────────────────────────────────────────


def drawn(logits: np.ndarray, sampling: SamplingParams, generated: list[int]) -> Drawn:
    """The worker's report of one draw."""
    token = sample(logits, sampling, generated)
    generated.append(token)
    logprob, top = log_probabilities(logits, token, N_TOP)
    return Drawn(token, logprob, tuple(Top(*pair) for pair in top))


@pytest.mark.parametrize("seed", [0, 7, 2**64 - 1])
def test_the_reported_probabilities_and_the_seed_give_the_token(seed: int) -> None:
    """Against the sampler itself, on rows of every shape; another seed's number falls elsewhere."""
    rng = np.random.default_rng(seed)
    sampling = SamplingParams(seed=seed, temperature=narrow(0.8), top_k=N_DRAWN)
    generated: list[int] = []
    rows = [drawn(rng.normal(0, 4, 300).astype(np.float32), sampling, generated) for _ in range(64)]
    served = answer(rows)
    assert worst_draw(served, seed, narrow(0.8))[0] < 1e-12
    assert worst_draw(served, seed ^ 1, narrow(0.8))[0] > 0.1


def test_a_parting_is_excused_by_the_number_that_fell_near_the_border() -> None:
    """Two equal shares: the number misses the other one by its distance from the middle."""
    rng = random.Random(3)
    half = {1: -0.7, 2: -0.7}
    first = answer([row(1, half)])
    for _ in range(20):
        seed = rng.randrange(2**64)
        miss, _ = worst_draw(first, seed, 1.0)
        other = answer([row(2, half)])
        total = miss + worst_draw(other, seed, 1.0)[0]
        assert miss_at_parting(first, other, seed, 1.0, ()) == pytest.approx(total)
        assert 0 < total <= 0.5
    assert miss_at_parting(first, first, 0, 1.0, ()) == 0.0
    assert miss_at_parting(first, answer([row(3, half)]), 0, 1.0, ()) == inf


def test_a_runner_up_is_excused_when_it_nearly_took_the_last_place() -> None:
    """N_TOP tokens in a flat row: the first behind the drawn ones took the last one's place by a hair."""
    flat = {token: -3.0 - 1e-6 * token for token in range(N_TOP)}
    seed = next(seed for seed in range(1000) if uniform(seed, 0) * N_DRAWN > N_DRAWN - 1)
    last = answer([row(N_DRAWN - 1, flat)])
    swapped = flat | {N_DRAWN - 1: flat[N_DRAWN], N_DRAWN: flat[N_DRAWN - 1]}
    runner_up = answer([row(N_DRAWN, dict(sorted(swapped.items(), key=lambda pair: -pair[1])))])
    assert miss_at_parting(last, runner_up, seed, 1.0, ()) < 1e-6
    far = flat | {N_DRAWN: -5.0}
    assert miss_at_parting(answer([row(N_DRAWN - 1, far)]), runner_up, seed, 1.0, ()) == pytest.approx(0.054, abs=1e-3)
    elsewhere = next(seed for seed in range(1000) if uniform(seed, 0) < 0.1)
    assert miss_at_parting(answer([row(0, flat)]), runner_up, elsewhere, 1.0, ()) > 0.8
