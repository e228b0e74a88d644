"""The prefix index for models with recurrent state: a node may have a checkpoint, the state after its last token.

A prompt can begin only at a checkpoint of its path. Each new one makes some of those before it superfluous: a state may
be as large as the cells of thousands of tokens. Owns the choice of those that stay; prefix_tree.py has the tree.
"""

from collections.abc import Collection
from collections.abc import Sequence as Seq
from itertools import accumulate, pairwise

from worker.engine.backend import Checkpoint, Saved
from worker.engine.checkpoints import NEAR
from worker.engine.kv_blocks import BlockJournal
from worker.engine.prefix_tree import Node, PrefixIndex, halves_of
from worker.wire.jobs import TokenId

LAST_KEPT = 3
"""The number of checkpoints at the end of a path that are kept however near they are: after an answer, before it, and
before the message that it answers."""


class StateIndex(PrefixIndex):
    """Saved cells and checkpoints by token prefix, at most `limit_bytes` of both."""

    def __init__(
        self, limit_bytes: int, journal: BlockJournal | None = None, *, stride: int, reach: int = NEAR
    ) -> None:
        """`stride`: checkpoints in the middle of a path are kept this far apart. `reach`: a checkpoint may lie fewer
        tokens than this before the place where paths part.
        """
        super().__init__(limit_bytes, journal)
        self._stride, self._reach = stride, reach

    def checkpoint(self, tokens: Seq[TokenId]) -> Checkpoint | None:
        """Return the last checkpoint among `tokens`, after whose tokens a sequence can begin. This does not count as
        a use: nothing changes.
        """
        path, n_matched = self._walk(tokens)
        found = [node.checkpoint for node in path if node.checkpoint is not None]
        return next((each for each in reversed(found) if each.n_tokens <= n_matched), None)

    def add_checkpoint(self, tokens: Seq[TokenId], checkpoint: Checkpoint, partings: Collection[int] = ()) -> None:
        """Keep the state after `tokens`, whose cells are all kept, and mark them as used. `partings`: the places where
        prompts that are being computed begin, of which the tree knows nothing yet.

        Other leaves are evicted to make room, and before them the earlier checkpoints of its own path. If there is no
        room even so, it is dropped and nothing changes.
        """
        assert checkpoint.n_tokens == len(tokens)
        path, n_matched = self._walk(tokens)
        assert n_matched == len(tokens), "its cells are kept"
        halves = halves_of(path, n_matched)
        if _n_cells_bytes(path) + checkpoint.n_bytes + _n_split_bytes(path, halves) > self.limit_bytes:
            return
        if halves is not None:
            path[-1] = self._split(path[-1], n_matched, *halves)
        self._mark(path)
        self._set_checkpoint(path[-1], checkpoint)
        self._thin_out(path, partings)
        self._shrink(self.limit_bytes)

    def _make_room(self, path: list[Node], halves: tuple[Saved, Saved] | None, n_more: int) -> bool:
        """Drop checkpoints of the path for `n_more` bytes. Return False if they do not fit beside its cells even so."""
        n_more += _n_split_bytes(path, halves)
        if _n_cells_bytes(path) + n_more > self.limit_bytes:
            return False
        self._drop_checkpoints(path, n_more)
        return True

    def _thin_out(self, path: list[Node], partings: Collection[int]) -> None:
        """Drop the checkpoints before the end of the path that are hardly worth their room: those less than a stride
        after the last one that stays, if prompts do not part there. If there is no room for all, the first go.
        """
        n_kept = 0
        bearers = [at for at, node in enumerate(path) if node.checkpoint is not None]
        ends = list(accumulate(node.saved.n_tokens for node in path))
        for at, following in [*pairwise(bearers)][: -LAST_KEPT + 1]:
            parts = ends[at] in partings or any(
                len(node.children) > 1 and end - ends[at] < self._reach
                for node, end in zip(path[at:following], ends[at:following], strict=True)
            )
            if parts or ends[at] - n_kept >= self._stride:
                n_kept = ends[at]
            else:
                self._set_checkpoint(path[at], None)
        self._drop_checkpoints(path)

    def _drop_checkpoints(self, path: list[Node], n_more: int = 0) -> None:
        """Drop as many of the first checkpoints of a path as leave room for it with `n_more` bytes."""
        n_bytes = sum(node.n_bytes for node in path) + n_more
        for node in path:
            if n_bytes <= self.limit_bytes:
                return
            if node.checkpoint is not None:
                n_bytes -= node.checkpoint.n_bytes
                self._set_checkpoint(node, None)

    def _set_checkpoint(self, node: Node, checkpoint: Checkpoint | None) -> None:
        is_leaf = not node.children
        if is_leaf:
            self._leaves.remove(node)
        self._n_bytes -= node.n_bytes
        node.checkpoint = checkpoint
        self._n_bytes += node.n_bytes
        if is_leaf:
            self._leaves.add(node)


def _n_cells_bytes(path: list[Node]) -> int:
    return sum(node.saved.n_bytes + node.n_score_bytes for node in path)


def _n_split_bytes(path: list[Node], halves: tuple[Saved, Saved] | None) -> int:
    """Return how many bytes the cells of the path's last node gain if it is split into these halves."""
    return 0 if halves is None else sum(half.n_bytes for half in halves) - path[-1].saved.n_bytes
