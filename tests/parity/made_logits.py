"""A made reference of a small vocabulary, and candidates that are off from it by a known amount."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from parity.evidence import Candidate, FullLogits, Kind, Window
from parity.logits_file import Provenance

N_VOCAB = 600
"""More than a logits file keeps of a row."""

Rows = NDArray[np.float32]

PROVENANCE = Provenance(
    made_from="made.gguf",
    made_from_sha256="ab" * 32,
    checkpoint_sha256="cd" * 32,
    text_digest="ef" * 32,
    dtype="float64",
    n_vocab=N_VOCAB,
    model_type="llama",
    versions={"torch": "2.13.0", "transformers": "5.23.0"},
    created="2026-01-02T03:04:05Z",
)


def greedy(logits: Callable[[Sequence[int]], Rows], prompt: Sequence[int], n_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(n_tokens):
        tokens.append(int(logits(tokens)[-1].argmax()))
    return tokens[len(prompt) :]


class MadeModel:
    """A function from tokens to logits: each row follows from the last tokens and their number, as a model's does."""

    def __init__(self, seed: int = 0, n_vocab: int = N_VOCAB, shift: int = 0) -> None:
        """`shift`: is added to every position, which a right model never does."""
        self._seed, self._n_vocab, self._shift = seed, n_vocab, shift

    def logits(self, tokens: Sequence[int]) -> Rows:
        return np.array([self._row(tokens[: end + 1], end + self._shift) for end in range(len(tokens))])

    def _row(self, tokens: Sequence[int], position: int) -> Rows:
        rng = np.random.default_rng([self._seed, position, *tokens[-3:]])
        row = rng.normal(size=self._n_vocab) * 2.5
        row[rng.integers(0, self._n_vocab, 4)] += 6.0
        return row.astype(np.float32)

    def greedy(self, prompt: Sequence[int], n_tokens: int) -> list[int]:
        return greedy(self.logits, prompt, n_tokens)


def made_windows(model: MadeModel, kinds: Sequence[Kind], length: int = 24, n_vocab: int = N_VOCAB) -> list[Window]:
    """One window for each of `kinds`; the texts are random, continuations the model's own."""
    rng = np.random.default_rng(5)
    windows = []
    for kind in kinds:
        tokens = rng.integers(0, n_vocab, length).tolist()
        if kind == "continuation":
            prompt = tokens[:4]
            windows.append(Window(kind, (*prompt, *model.greedy(prompt, length - 4)), 4))
        else:
            windows.append(Window(kind, tuple(tokens)))
    return windows


def made_reference(folder: Path, kinds: Sequence[Kind], length: int = 24) -> FullLogits:
    model = MadeModel()
    return FullLogits.make(folder, made_windows(model, kinds, length), lambda window: model.logits(window.tokens))


def candidate(
    change: Callable[[Rows], Rows] = lambda rows: rows,
    *,
    name: str = "made",
    file_type: str = "Q4_1",
    model: MadeModel | None = None,
    is_source: bool = True,
) -> Candidate:
    """The made model with `change` on its rows."""
    model = model or MadeModel()

    def logits(tokens: Sequence[int]) -> Rows:
        return change(model.logits(tokens))

    return Candidate(name, file_type, logits, partial(greedy, logits), is_source)


def noisy(scale: float, seed: int = 1) -> Callable[[Rows], Rows]:
    """Normal errors of the standard deviation `scale`."""
    rng = np.random.default_rng(seed)
    return lambda rows: (rows + rng.normal(size=rows.shape) * scale).astype(np.float32)
