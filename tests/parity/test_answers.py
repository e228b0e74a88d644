"""The place where two answers part, and a check that a seed draws what was served."""

import numpy as np
import pytest

from client.execute import Drawn, Top
from parity.answers import N_DRAWN, N_TOP, miss_at_parting, worst_draw
from tests.parity.made_answers import answer, row
from worker.engine.sampling.sample import log_probabilities, sample, uniform
from worker.wire.jobs import SamplingParams, narrow

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
