"""Rows by hand, and what is left of them."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from worker.engine.sampling.row import NO_IDS
from worker.engine.sampling.sample import candidates
from worker.wire.jobs import SamplingParams

Row = NDArray[np.float32]


def row(*logits: float) -> Row:
    values = np.array(logits, dtype=np.float32)
    values.flags.writeable = False
    return values


def ids_of(
    logits: Row, sampling: SamplingParams, generated: Sequence[int] = (), ends: NDArray[np.intp] = NO_IDS
) -> list[int]:
    return [int(token) for token in candidates(logits, sampling, generated, ends)[0]]


def probs_of(logits: Row, sampling: SamplingParams, generated: Sequence[int] = ()) -> list[float]:
    return [float(prob) for prob in candidates(logits, sampling, generated)[1]]


def log_ratio(logits: Row, sampling: SamplingParams, generated: Sequence[int]) -> float:
    """ln of token 0's probability over token 1's: what the penalties did to two scores."""
    ids, probs = candidates(logits, sampling, generated)
    by_id = dict(zip(ids.tolist(), probs.tolist(), strict=True))
    return math.log(by_id[0] / by_id[1])
