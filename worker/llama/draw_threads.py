"""Threads that draw along with the step thread, where a step has many tokens to draw from large vocabularies.

Owns when that pays, and how the work is shared out. Knows nothing of rows: numpy and ggml let other threads run while
they go through a row, so that several rows are drawn from at once. The step thread's.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

MAX_DRAW_THREADS = 4
"""More gain little: about a third of a draw needs the interpreter, which one thread at a time has."""

MIN_ROWS = 8
MIN_VALUES = 200_000
"""The rows, and the values in all of them, from which on several threads draw: as many values take 0.3 ms, and ten if
all tokens are about as probable. To wake a thread takes some 50 µs."""


class DrawThreads:
    """`n_threads` at most, the step thread among them."""

    def __init__(self, n_threads: int, *, min_rows: int = MIN_ROWS, min_values: int = MIN_VALUES) -> None:
        self._n_threads = min(n_threads, MAX_DRAW_THREADS)
        self._min_rows, self._min_values = min_rows, min_values
        self._helpers: ThreadPoolExecutor | None = None

    def pays(self, n_rows: int, n_values: int) -> bool:
        """True if several threads are to draw from `n_rows` rows, which have `n_values` values together."""
        return self._n_threads > 1 and n_rows >= self._min_rows and n_values >= self._min_values

    def map(self, draw: Callable[[T], R], asked: Seq[T]) -> list[R]:
        """Return the results of `draw` for each, in order. Raises: as `draw`."""
        if self._helpers is None:
            self._helpers = ThreadPoolExecutor(self._n_threads - 1, thread_name_prefix="draw")
        n = self._n_threads
        parts = [self._helpers.submit(lambda part: [draw(each) for each in part], asked[at::n]) for at in range(1, n)]
        found: list[list[R]] = [[draw(each) for each in asked[::n]], *(part.result() for part in parts)]
        return [found[at % n][at // n] for at in range(len(asked))]
