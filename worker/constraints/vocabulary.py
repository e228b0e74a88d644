"""The vocabulary of a model, as far as constraints need it, so that this room knows no model."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker.wire.jobs import TokenId


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """The functions may be called on any thread for as long as the model lives."""

    pieces: Seq[bytes]
    """The bytes of each token; empty for a token that is no text."""
    ends: NDArray[np.intp]
    """The tokens that end an answer."""
    piece: Callable[[TokenId], bytes]
    """The bytes of a token in an answer; empty for a token that is no text."""
    name: Callable[[TokenId], bytes]
    """The vocabulary's spelling of a token, also of one that is not text."""
    token_of: Callable[[str], TokenId | None]
    """The one token that a text is, control tokens included."""
    spell: Callable[[bytes], Seq[int]]
    """A text in tokens, as the tokenizer splits it."""
