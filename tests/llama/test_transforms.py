"""Each of our transforms against llama.cpp's own sampler on the same rows: the same tokens, the same probabilities.

One field at a time, so that the order plays no role; at the end all of them in our order. No weights are needed.
Differences that are meant, and how the rows keep clear of them:

- llama.cpp computes in float32, we in float64: probabilities agree to 1e-5 of their size, and a cut (top_p, typical,
  min_p, sigma) may fall differently only where a sum lies within that of its border. The rows are seeded.
- Among equal logits its sorts keep any, ours the lower id: no row has two equal logits.
- It reads 0 as "off" for penalty windows and top_n_sigma; where we mean "all tokens" it gets their number.
- Its min_keep is 1 throughout, as ours always is.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp as capi
from numpy.typing import NDArray

from tools.bench.llama.chain import Chain, Stage, temp, top_p
from worker.engine.sampling.sample import candidates
from worker.wire.jobs import SamplingParams, TokenId

N_VOCAB = 600
RELATIVE = 1e-5
SEEDS = range(8)

Logits = NDArray[np.float32]


def rows(standard_deviation: float) -> list[Logits]:
    """Three of the tokens are close to the best one, as a model's often are, and one cannot be drawn."""
    found = []
    for seed in SEEDS:
        chance = np.random.default_rng(seed)
        logits = chance.normal(0.0, standard_deviation, N_VOCAB).astype(np.float32)
        logits[:3] = logits.max() - chance.uniform(0.0, 1.0, 3)
        found.append(chance.permutation(logits))
    return found


def theirs(logits: Logits, stages: list[Stage], generated: list[int] | None = None) -> dict[int, float]:
    """The tokens that llama.cpp's stages leave of a row, each with its probability, without the impossible ones."""
    with Chain(len(logits), stages) as chain:
        for token in generated or []:
            chain.accept(TokenId(token))
        left = chain.apply(logits)
        found = np.ctypeslib.as_array(left.data, shape=(left.size,)).copy()
    found = found[found["logit"] > -np.inf]
    scores = found["logit"].astype(np.float64)
    weights = np.exp(scores - scores.max())
    return dict(zip(found["id"].tolist(), (weights / weights.sum()).tolist(), strict=True))


def ours(logits: Logits, sampling: SamplingParams, generated: list[int] | None = None) -> dict[int, float]:
    ids, probs = candidates(logits, sampling, generated or [])
    return dict(zip(ids.tolist(), probs.tolist(), strict=True))


def assert_agree(
    logits: Logits, sampling: SamplingParams, stages: list[Stage], generated: list[int] | None = None
) -> dict[int, float]:
    """Our candidates are theirs; returned for a look at what they are."""
    found = ours(logits, sampling, generated)
    assert found == pytest.approx(theirs(logits, stages, generated), rel=RELATIVE)
    return found


def make(init: Callable[..., Any], *arguments: object) -> Stage:
    return partial(init, *arguments)


# ── one field at a time ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("temperature", [0.1, 0.8, 1.7])
def test_temperature(temperature: float) -> None:
    for logits in rows(3.0):
        assert_agree(logits, SamplingParams(seed=0, temperature=temperature), [temp(temperature)])


@pytest.mark.parametrize("k", [1, 2, 40, 200, N_VOCAB, 10_000])
def test_top_k(k: int) -> None:
    """Beyond 128 llama.cpp sorts by buckets, below with a heap."""
    for logits in rows(3.0):
        found = assert_agree(logits, SamplingParams(seed=0, top_k=k), [make(capi.llama_sampler_init_top_k, k)])
        assert len(found) == min(k, N_VOCAB)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 0.95])
@pytest.mark.parametrize("standard_deviation", [0.5, 3.0])
def test_top_p(standard_deviation: float, p: float) -> None:
    for logits in rows(standard_deviation):
        found = assert_agree(logits, SamplingParams(seed=0, top_p=p), [top_p(p)])
        assert 1 <= len(found) < N_VOCAB


@pytest.mark.parametrize("p", [0.01, 0.05, 0.3, 0.9])
def test_min_p(p: float) -> None:
    for logits in rows(3.0):
        assert_agree(logits, SamplingParams(seed=0, min_p=p), [make(capi.llama_sampler_init_min_p, p, 1)])


@pytest.mark.parametrize("p", [0.0, 0.2, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("standard_deviation", [0.5, 2.0])
def test_typical_p(standard_deviation: float, p: float) -> None:
    """It goes on until the sum is above p, we until it reaches p: the same unless they are equal."""
    for logits in rows(standard_deviation):
        assert_agree(logits, SamplingParams(seed=0, typical_p=p), [make(capi.llama_sampler_init_typical, p, 1)])


@pytest.mark.parametrize("n", [0.1, 1.0, 2.0, 5.0])
def test_top_n_sigma(n: float) -> None:
    for logits in rows(3.0):
        assert_agree(logits, SamplingParams(seed=0, top_n_sigma=n), [make(capi.llama_sampler_init_top_n_sigma, n)])


def test_top_n_sigma_does_not_count_tokens_that_cannot_be_drawn() -> None:
    for logits in rows(3.0):
        logits[::2] = -np.inf
        assert_agree(logits, SamplingParams(seed=0, top_n_sigma=1.0), [make(capi.llama_sampler_init_top_n_sigma, 1.0)])


@pytest.mark.parametrize("threshold", [0.02, 0.1, 0.3, 0.5])
def test_xtc(threshold: float) -> None:
    """Its coin and ours both always fall for it with probability 1, whatever the seed."""
    sampling = SamplingParams(seed=0, xtc_probability=1.0, xtc_threshold=threshold)
    n_removed = 0
    for logits in rows(1.0):
        logits[:40] += 8.0
        found = assert_agree(logits, sampling, [make(capi.llama_sampler_init_xtc, 1.0, threshold, 1, 7)])
        n_removed += N_VOCAB - len(found)
    assert (n_removed > 0) == (threshold < 0.3)


def test_xtc_above_one_half_is_off() -> None:
    sampling = SamplingParams(seed=0, xtc_probability=1.0, xtc_threshold=0.51)
    for logits in rows(3.0):
        assert_agree(logits, sampling, [make(capi.llama_sampler_init_xtc, 1.0, 0.51, 1, 7)])


def test_logit_bias_and_bans() -> None:
    bias = {"0": 5.0, "7": -3.5, "599": -100, "20": 100.0}
    theirs = ((int(token), -np.inf if value == -100 else value) for token, value in bias.items())
    array = (capi.llama_logit_bias * len(bias))(*(capi.llama_logit_bias(token, value) for token, value in theirs))
    stage = make(capi.llama_sampler_init_logit_bias, N_VOCAB, len(bias), array)
    for logits in rows(3.0):
        found = assert_agree(logits, SamplingParams(seed=0, logit_bias=bias), [stage])
        assert 599 not in found


@pytest.mark.parametrize(
    ("repetition", "frequency", "presence"),
    [(1.3, 0.0, 0.0), (0.7, 0.0, 0.0), (1.0, 0.4, 0.0), (1.0, -0.4, 0.0), (1.0, 0.0, 1.5), (1.2, 0.3, -0.7)],
)
@pytest.mark.parametrize("window", [-1, 1, 10])
def test_penalties(window: int, repetition: float, frequency: float, presence: float) -> None:
    """One sampler of llama.cpp's does all three, in our order. -1, all tokens, is their number there."""
    sampling = SamplingParams(
        seed=0,
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        presence_penalty=presence,
        repeat_last_n=window,
    )
    for logits in rows(3.0):
        generated = np.random.default_rng(1).integers(0, 30, 50).tolist()
        last_n = len(generated) if window == -1 else window
        penalties = make(capi.llama_sampler_init_penalties, N_VOCAB, last_n, repetition, frequency, presence)
        assert_agree(logits, sampling, [penalties], generated)


@pytest.mark.long
@pytest.mark.parametrize(("multiplier", "base", "allowed"), [(0.8, 1.75, 2), (2.0, 1.0, 1), (0.1, 3.0, 4)])
@pytest.mark.parametrize("window", [-1, 3, 25])
@pytest.mark.parametrize("n_tokens", [2, 5, 60])
def test_dry(n_tokens: int, window: int, multiplier: float, base: float, allowed: int) -> None:
    """There are no sequence breakers, which we have not, so llama.cpp needs no vocabulary. Three words repeat a lot."""
    sampling = SamplingParams(
        seed=0, dry_multiplier=multiplier, dry_base=base, dry_allowed_length=allowed, repeat_last_n=window
    )
    for seed, logits in zip(SEEDS, rows(3.0), strict=True):
        generated = np.random.default_rng(seed).integers(0, 3, n_tokens).tolist()
        last_n = n_tokens if window == -1 else window
        dry = make(capi.llama_sampler_init_dry, None, multiplier, base, allowed, last_n, None, 0)
        assert_agree(logits, sampling, [dry], generated)


# ── all of them, in our order ────────────────────────────────────────────────────────────────────


def test_the_whole_order_is_the_chain_built_in_that_order() -> None:
    """The order is ours; llama-server would apply the temperature last."""
    bias = (capi.llama_logit_bias * 1)(capi.llama_logit_bias(3, 2.5))
    generated = [1, 2, 3, 1, 2, 3, 1, 2]
    n_generated = len(generated)
    sampling = SamplingParams(
        seed=0,
        logit_bias={"3": 2.5},
        temperature=0.9,
        repetition_penalty=1.1,
        frequency_penalty=0.2,
        presence_penalty=0.1,
        dry_multiplier=0.8,
        top_n_sigma=2.5,
        top_k=60,
        typical_p=0.98,
        top_p=0.97,
        min_p=0.02,
        xtc_probability=1.0,
        xtc_threshold=0.1,
    )
    stages = [
        make(capi.llama_sampler_init_logit_bias, N_VOCAB, 1, bias),
        temp(0.9),
        make(capi.llama_sampler_init_penalties, N_VOCAB, n_generated, 1.1, 0.2, 0.1),
        make(capi.llama_sampler_init_dry, None, 0.8, 1.75, 2, n_generated, None, 0),
        make(capi.llama_sampler_init_top_n_sigma, 2.5),
        make(capi.llama_sampler_init_top_k, 60),
        make(capi.llama_sampler_init_typical, 0.98, 1),
        top_p(0.97),
        make(capi.llama_sampler_init_min_p, 0.02, 1),
        make(capi.llama_sampler_init_xtc, 1.0, 0.1, 1, 7),
    ]
    for logits in rows(1.5):
        found = assert_agree(logits, sampling, stages, generated)
        assert 1 < len(found) < 60
