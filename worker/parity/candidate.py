"""What is compared with the reference: a model file as one way of running it computes it.

Made by whoever opens the model; the levels only ask.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Candidate:
    """`llama.scoring.Scorer` has both functions."""

    name: str
    """In reports: `F32 copy`."""
    file_type: str
    """Of the weights, as in the bounds' keys: `Q4_1`."""
    logits: Callable[[Sequence[int]], NDArray[np.float32]]
    """Tokens → float32[n_tokens, n_vocab], from an empty memory."""
    greedy: Callable[[Sequence[int], int], list[int]]
    """Prompt and number of tokens → the most probable continuation, ends not respected."""
    is_source: bool = False
    """Whether the reference's weights were made from this very file, so that its weights have no error."""

    def keys(self, level: str, what: str) -> tuple[str, str]:
        """The bounds of a quantised file, special before general: `logits.file.Q4_1.kl_mean`, then `…other…`.

        `own` in place of `file` where the weights are the reference's own.
        """
        group = "own" if self.is_source else "file"
        return f"{level}.{group}.{self.file_type}.{what}", f"{level}.{group}.other.{what}"
