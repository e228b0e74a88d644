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
from itertools import product
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


def agreed(
    logits: Logits, sampling: SamplingParams, stages: list[Stage], generated: list[int] | None = None
) -> set[int]:
    """Our candidates, which are theirs."""
    ids, probs = candidates(logits, sampling, generated or [])
    found = dict(zip(ids.tolist(), probs.tolist(), strict=True))
    assert found == pytest.approx(theirs(logits, stages, generated), rel=RELATIVE)
    return {*found}


def make(init: Callable[..., Any], *arguments: object) -> Stage:
    return partial(init, *arguments)


# ── one field at a time ──────────────────────────────────────────────────────────────────────────

STAGES: dict[str, Callable[[Any], Stage]] = {
    "temperature": temp,
    "top_k": lambda k: make(capi.llama_sampler_init_top_k, k),
    "top_p": top_p,
    "min_p": lambda p: make(capi.llama_sampler_init_min_p, p, 1),
    "typical_p": lambda p: make(capi.llama_sampler_init_typical, p, 1),
    "top_n_sigma": lambda n: make(capi.llama_sampler_init_top_n_sigma, n),
}
"""It goes on with typical tokens until their sum is above p, we until it reaches p: the same unless they are equal."""


@pytest.mark.parametrize(
    ("field", "values", "standard_deviations"),
    [
        ("temperature", [0.1, 0.8, 1.7], [3.0]),
        ("top_k", [1, 2, 40, 200, N_VOCAB, 10_000], [3.0]),  # beyond 128 llama.cpp sorts by buckets, below with a heap
        ("top_p", [0.0, 0.1, 0.5, 0.9, 0.95], [0.5, 3.0]),
        ("min_p", [0.01, 0.05, 0.3, 0.9], [3.0]),
        ("typical_p", [0.0, 0.2, 0.5, 0.9, 0.99], [0.5, 2.0]),
        ("top_n_sigma", [0.1, 1.0, 2.0, 5.0], [3.0]),
    ],
)
def test_a_field_alone_leaves_the_same_tokens(
    field: str, values: list[float], standard_deviations: list[float]
) -> None:
    for value, deviation in product(values, standard_deviations):
        for logits in rows(deviation):
            asked: dict[str, Any] = {field: value}
            found = agreed(logits, SamplingParams(seed=0, **asked), [STAGES[field](value)])
            assert field != "top_k" or len(found) == min(value, N_VOCAB)
            assert field != "top_p" or 1 <= len(found) < N_VOCAB


def test_top_n_sigma_does_not_count_tokens_that_cannot_be_drawn() -> None:
    for logits in rows(3.0):
        logits[::2] = -np.inf
        agreed(logits, SamplingParams(seed=0, top_n_sigma=1.0), [STAGES["top_n_sigma"](1.0)])


@pytest.mark.parametrize("threshold", [0.02, 0.1, 0.3, 0.5, 0.51])
def test_xtc(threshold: float) -> None:
    """Its coin and ours both always fall for it with probability 1, whatever the seed. Above one half it is off."""
    sampling = SamplingParams(seed=0, xtc_probability=1.0, xtc_threshold=threshold)
    n_removed = 0
    for logits in rows(1.0):
        logits[:40] += 8.0
        n_removed += N_VOCAB - len(agreed(logits, sampling, [make(capi.llama_sampler_init_xtc, 1.0, threshold, 1, 7)]))
    assert (n_removed > 0) == (threshold < 0.3)


def test_logit_bias_and_bans() -> None:
    bias = {"0": 5.0, "7": -3.5, "599": -100, "20": 100.0}
    theirs = ((int(token), -np.inf if value == -100 else value) for token, value in bias.items())
    array = (capi.llama_logit_bias * len(bias))(*(capi.llama_logit_bias(token, value) for token, value in theirs))
    stage = make(capi.llama_sampler_init_logit_bias, N_VOCAB, len(bias), array)
    for logits in rows(3.0):
        assert 599 not in agreed(logits, SamplingParams(seed=0, logit_bias=bias), [stage])


@pytest.mark.parametrize(
    ("repetition", "frequency", "presence"),
    [(1.3, 0.0, 0.0), (0.7, 0.0, 0.0), (1.0, 0.4, 0.0), (1.0, -0.4, 0.0), (1.0, 0.0, 1.5), (1.2, 0.3, -0.7)],
)
@pytest.mark.parametrize("window", [-1, 1, 10])
def test_penalties(window: int, repetition: float, frequency: float, presence: float) -> None:
    """One sampler of llama.cpp's does all three, in our order. -1, all tokens, is their number there."""
    fields: dict[str, Any] = {
        "repetition_penalty": repetition,
        "frequency_penalty": frequency,
        "presence_penalty": presence,
    }
    sampling = SamplingParams(seed=0, repeat_last_n=window, **fields)
    for logits in rows(3.0):
        generated = np.random.default_rng(1).integers(0, 30, 50).tolist()
        last_n = len(generated) if window == -1 else window
        penalties = make(capi.llama_sampler_init_penalties, N_VOCAB, last_n, repetition, frequency, presence)
        agreed(logits, sampling, [penalties], generated)


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
        agreed(logits, sampling, [dry], generated)


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
        STAGES["top_n_sigma"](2.5),
        STAGES["top_k"](60),
        STAGES["typical_p"](0.98),
        top_p(0.97),
        STAGES["min_p"](0.02),
        make(capi.llama_sampler_init_xtc, 1.0, 0.1, 1, 7),
    ]
    for logits in rows(1.5):
        found = agreed(logits, sampling, stages, generated)
        assert 1 < len(found) < 60
