"""What the reference says about the evaluation text: windows of tokens, and rows of logits at their positions.

The seam between making a reference and comparing with it. Two sources of rows: full_logits.py (all of every row, on
disk, made in the same run) and logits_file.py (a file that needs neither torch nor the checkpoint). Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Kind = Literal["short", "long", "continuation"]


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens that are computed together from an empty memory.

    `short`: SHORT tokens of the text, `long`: LONG tokens of it; `continuation`: a prompt of `n_prompt` tokens and what
    the reference greedily goes on with. `tokens[0]` is BOS where the model wants one.
    """

    kind: Kind
    tokens: tuple[int, ...]
    n_prompt: int = 0

    @property
    def targets(self) -> tuple[int, ...]:
        """The token after each position but the last."""
        return self.tokens[1:]


SHORT, LONG = 64, 512
"""Why two: llama.cpp's RoPE angles are float32 and their error grows with the position, so float32 is proved on short
windows; everything else is measured where models are used."""


@dataclass(frozen=True, slots=True)
class Positions:
    """A candidate's rows against the reference's, one entry per position: arrays of one length, float64 unless said.

    Where the reference row is known by its highest entries only, `kl` is over these and the rest as one (a lower
    bound), `cosine` is over these, and errors are over these.
    """

    kl: NDArray[np.float64]
    """KL(reference ‖ candidate), nats."""
    max_error: NDArray[np.float64]
    """Largest |candidate - reference| of a logit."""
    mean_error: NDArray[np.float64]
    cosine: NDArray[np.float64]
    top1: NDArray[np.bool_]
    """Whether both rows have the same highest token."""
    top5: NDArray[np.float64]
    """Share of the reference's five highest that are among the candidate's."""
    margin: NDArray[np.float64]
    """Reference's highest logit minus its second."""
    nll: NDArray[np.float64]
    """Candidate's -log p of the token that follows in the window; NaN at the last position."""
    reference_nll: NDArray[np.float64]
    is_full: NDArray[np.bool_]
    """Whether the reference row was known in full."""


def longest(windows: Iterable[Window]) -> int:
    """Tokens of the longest window: what a context must hold."""
    return max(len(window.tokens) for window in windows)


class ReferenceLogits(Protocol):
    """The rows of the reference. Two implementations, see above."""

    @property
    def windows(self) -> Sequence[Window]: ...

    def positions(self, window: int, logits: NDArray[np.float32]) -> Positions:
        """A candidate's logits [n_tokens, n_vocab] of window number `window` against the reference's.

        Raises: ValueError for another shape.
        """
        ...

    def gap(self, window: int, position: int, token: int) -> float:
        """By how much the reference's highest logit at the position exceeds that of `token`; where the row is known in
        part and the token is not among it, the least it can be."""
        ...

    def full_rows(self) -> Sequence[tuple[int, int, NDArray[np.float32]]]:
        """(window, position, row[n_vocab]) of at least 16 positions spread over the long windows."""
        ...
