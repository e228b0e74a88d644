"""Rows by hand, and what is left of them."""

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
