"""How the rows of a decode step are grouped so that a row has the same bits in any company.

ggml computes a row of a matrix product with one kernel when it is alone, and with others among two, four or eight rows;
some of these round otherwise (docs/architecture.md, Determinism). How a step's rows are grouped decides which kernels
run: groups of at most `most` rows are decoded one after the other, and each is filled up to a multiple of
`multiple` with rows that nobody reads. Pure arithmetic; which grouping makes rows the same is measured by self_test.py.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from worker.engine.backend import Slice
from worker.model.memory import MOST_PADDING


@dataclass(frozen=True, slots=True)
class RowGroups:
    """The default is llama.cpp's own way: a step as it comes."""

    multiple: int = 1
    most: int = 0
    """A multiple of `multiple`; 0: no limit."""

    def __post_init__(self) -> None:
        assert self.multiple - 1 <= MOST_PADDING
        assert self.most % self.multiple == 0

    def n_padding(self, slices: Seq[Slice]) -> int:
        """How many rows a batch lacks; 0 for any but an ordinary decode step, whose slices have a token each."""
        return -len(slices) % self.multiple if self.multiple > 1 and _is_decode(slices) else 0

    def split(self, slices: Seq[Slice]) -> Iterator[Seq[Slice]]:
        """The groups of an ordinary decode step; any other as it is."""
        if not self.most or len(slices) <= self.most or not _is_decode(slices):
            yield slices
            return
        for begin in range(0, len(slices), self.most):
            yield slices[begin : begin + self.most]


CHOICES = (
    RowGroups(),
    RowGroups(most=4),
    RowGroups(multiple=2),
    RowGroups(multiple=2, most=4),
    RowGroups(multiple=4),
    RowGroups(multiple=4, most=4),
    RowGroups(most=1),
)
"""Those that are tried, the cheapest for a job alone first. K-quants have another kernel from eight rows on, weights of
floats one for two rows and more. The last has no company in any product, and so is the same everywhere."""


def _is_decode(slices: Seq[Slice]) -> bool:
    return all(len(piece.tokens) == 1 for piece in slices)
