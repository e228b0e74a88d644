"""What drawing a token costs, in microseconds: ours, and llama.cpp's chain with the same settings on the same rows.

Owns the settings and the clock of `bench sampling`. Refuses to judge (sampling.py has the bounds).
Runs in a short-lived process of its own, on one thread.

A model's rows are sampled by llama_sampler_sample where they lie. For synthetic rows there is no context; a chain's
candidates are then filled by numpy, and what Python adds is taken off. That still makes a greedy token of theirs about
a tenth dearer than llama_sampler_sample's, and the worst case by 2 % (49,152 tokens). All caches are warm: right after
a decode, which leaves nothing of either in them, both take some 25 µs more.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

import numpy as np

from tools.bench.llama import chain
from tools.bench.llama.chain import Chain, Stage
from tools.bench.llama.logit_rows import Logits, Origin, Rows
from worker.sampling.logprobs import log_probabilities
from worker.sampling.sample import candidates, sample
from worker.wire.messages import Sampling, TokenId

PHRASE_TOKENS = 250
"""The generated tokens that penalties look back on are a phrase of so many, twice."""
_N_BIASED = 16

Settings = Literal["greedy", "worst case"]
Draw = Callable[[int], object]
"""Draws from the row of that number."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Medians over all rows and rounds, per token."""

    settings: Settings
    origin: Origin
    n_vocab: int
    n_kept: int
    """The median row's candidates: how many tokens could be drawn."""
    ours_us: float
    llama_cpp_us: float
    chain: str
    """The stages of llama.cpp's chain; of several possible orders the fastest."""


@dataclass(frozen=True, slots=True)
class FieldCost:
    """A token's cost with one request field switched on alone."""

    field: str
    us: float


_GREEDY = Sampling(seed=0, temperature=0.0)
_WORST_CASE = Sampling(seed=0, temperature=0.8, top_p=0.95)
"""top_k off: every token of the vocabulary may be in the nucleus."""

_OURS: dict[Settings, Sampling] = {"greedy": _GREEDY, "worst case": _WORST_CASE}
_THEIRS: dict[Settings, dict[str, tuple[tuple[Stage, ...], Stage]]] = {
    "greedy": {"greedy": ((), chain.greedy)},
    "worst case": {
        "top_p, temp, dist": ((chain.top_p(0.95), chain.temp(0.8)), chain.dist(1)),
        "temp, top_p, dist": ((chain.temp(0.8), chain.top_p(0.95)), chain.dist(1)),
    },
}
"""Name → stages and selection. The worst case in llama-server's order and in ours."""


def compare(rows: Rows, settings: Settings, n_rounds: int) -> Comparison:
    """Ours and every order of theirs in turn over all rows, `n_rounds` times after one that is not counted."""
    sampling = _OURS[settings]
    logits = rows.logits
    seeded = _one_seed_a_row(sampling, rows)
    with ExitStack() as closing:
        chains = {
            name: closing.enter_context(Chain(rows.n_vocab, *stages)) for name, stages in _THEIRS[settings].items()
        }
        ours_us, *theirs_us = _medians_us(
            [lambda row: sample(logits[row], seeded[row], ()), *(_drawing(each, rows) for each in chains.values())],
            logits,
            n_rounds,
        )
    fastest_us, name = min(zip(theirs_us, chains, strict=True))
    n_kept = int(median(len(candidates(row, sampling, ())[0]) for row in logits))
    added_us = 0.0 if rows.context else _added_by_python_us()
    return Comparison(settings, rows.origin, rows.n_vocab, n_kept, ours_us, fastest_us - added_us, name)


def field_costs(rows: Rows, n_rounds: int) -> list[FieldCost]:
    """What a token costs with each field of a request switched on alone, after a phrase of 250 tokens said twice."""
    phrase = np.random.default_rng(0).permutation(rows.n_vocab)[:PHRASE_TOKENS]
    generated = [int(token) for token in phrase] * 2
    ends = np.array(generated[:4], dtype=np.intp)
    fields = _fields(generated)

    def drawing(sampling: Sampling) -> Draw:
        seeded = _one_seed_a_row(sampling, rows)
        n_top = sampling.logprobs

        def draw(row: int) -> object:
            token = sample(rows.logits[row], seeded[row], generated, ends)
            return token if n_top is None else log_probabilities(rows.logits[row], token, n_top)

        return draw

    costs_us = _medians_us([drawing(sampling) for sampling in fields.values()], rows.logits, n_rounds)
    return [FieldCost(field, us) for field, us in zip(fields, costs_us, strict=True)]


def _fields(tokens: Seq[int]) -> dict[str, Sampling]:
    """A typical value of each field; what `Sampling` leaves out is off. `tokens`: to be biased."""
    bias = tuple((TokenId(token), 1.5) for token in tokens[:_N_BIASED])
    return {
        "all off (temperature 1)": Sampling(seed=0),
        "temperature 0": _GREEDY,
        "temperature 0.8": Sampling(seed=0, temperature=0.8),
        "temperature 0.8, top_p 0.95": _WORST_CASE,
        "logit_bias, 16 tokens": Sampling(seed=0, logit_bias=bias),
        "ignore_eos": Sampling(seed=0, ignore_eos=True),
        "min_tokens 1000": Sampling(seed=0, min_tokens=1000),
        "repetition_penalty 1.1": Sampling(seed=0, repetition_penalty=1.1),
        "frequency_penalty 0.5": Sampling(seed=0, frequency_penalty=0.5),
        "presence_penalty 0.5": Sampling(seed=0, presence_penalty=0.5),
        "dry_multiplier 0.8": Sampling(seed=0, dry_multiplier=0.8),
        "top_n_sigma 1": Sampling(seed=0, top_n_sigma=1.0),
        "top_k 40": Sampling(seed=0, top_k=40),
        "typical_p 0.9": Sampling(seed=0, typical_p=0.9),
        "top_p 0.95": Sampling(seed=0, top_p=0.95),
        "min_p 0.05": Sampling(seed=0, min_p=0.05),
        "xtc_probability 1": Sampling(seed=0, xtc_probability=1.0),
        "logprobs 20": Sampling(seed=0, logprobs=20),
    }


def _one_seed_a_row(sampling: Sampling, rows: Rows) -> list[Sampling]:
    """A likely token may be cheaper to find than an unlikely one."""
    return [replace(sampling, seed=seed) for seed in range(len(rows.logits))]


def _drawing(peer: Chain, rows: Rows) -> Draw:
    context = rows.context
    if context is None:
        return lambda row: peer.sample(rows.logits[row])
    return lambda row: peer.sample_output(context, rows.indexes[row])


# ── the clock ────────────────────────────────────────────────────────────────────────────────────


def _medians_us(draws: Seq[Draw], logits: Seq[Logits], n_rounds: int) -> list[float]:
    """Each draw's median over all rows and rounds. They take turns, so that a busy moment hits all of them alike."""
    times_ns: list[list[int]] = [[] for _ in draws]
    for n_round in range(n_rounds + 1):
        for draw, measured in zip(draws, times_ns, strict=True):
            taken = [_time_ns(draw, row, each) for row, each in enumerate(logits)]
            # The first round allocates.
            if n_round:
                measured.extend(taken)
    return [median(measured) / 1000 for measured in times_ns]


def _time_ns(draw: Draw, row: int, logits: Logits) -> int:
    # Into the cache: whose turn it is must not decide that.
    logits.max()
    began = time.perf_counter_ns()
    draw(row)
    return time.perf_counter_ns() - began


def _added_by_python_us() -> float:
    """What calling a chain costs where there is nothing to do: a vocabulary of one token."""
    row = np.zeros(1, dtype=np.float32)
    with Chain(1, [], chain.greedy) as nothing:
        return _medians_us([lambda _: nothing.sample(row)], [row], 200)[0]
