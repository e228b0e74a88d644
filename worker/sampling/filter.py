"""What a draw asks of a grammar: may this token come next, and which may?

Owns the question and the masking of a row. Knows nothing of grammars. Pure; the step thread.
"""

from typing import Protocol

import numpy as np

from worker.sampling.arrays import Logits, Mask


class Filter(Protocol):
    """Two implementations: llama/grammar.py's constraint, and the tests' plain set of tokens."""

    def allows(self, token: int) -> bool:
        """Whether this token may come next; cheap."""
        ...

    def allowed(self) -> Mask:
        """bool[n_vocab]: for each token whether it may come next; asked only after a refusal, may take milliseconds."""
        ...


def masked(logits: Logits, filter: Filter) -> Logits:
    """A copy of the row with -inf at every token that the filter does not allow."""
    copy = logits.copy()
    copy[~filter.allowed()] = -np.inf
    return copy
