"""The prefix index: a radix tree over the tokens of finished jobs whose nodes own saved cells, and scores with them.

    edges:  [ You are helpful. )──[ Add 2 and 2. 4 )──[ And 3? 7 )
                                └─[ Translate "cat". )

Every node has cells, so the root is none. Evicting leaves a parent with one child as it is: cells can be split, not
joined. A node may have the scores of its first tokens too, if its parent has all of its own. The salt of a prompt
(step.py) is part of the first node's key. There is no clock: time is the number of operations so far.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import accumulate, islice

from worker.engine.backend import Checkpoint, Found, Saved
from worker.engine.kv_blocks import BLOCK_TOKENS, BlockJournal
from worker.engine.step import Score, salt_of
from worker.wire.jobs import TokenId
from worker.wire.messages import BlockHash

_WIDTH = array("i").itemsize
"""The bytes of a token in an edge. Edges are bytes because C slices and compares these without a look at types."""

N_LOOKED_AT = 64
"""The number of the longest unused leaves of which one is evicted."""

SCORE_BYTES = 48
"""The bytes that a score takes besides its own: the object's head, and the place in a list that points at it."""


@dataclass(slots=True, eq=False)
class Node:
    key: bytes
    """Its place among its siblings: its first token, and the salt of the first node."""
    edge: bytes
    saved: Saved
    parent: "Node | None"
    last_used: int
    children: dict[bytes, "Node"] = field(default_factory=dict)
    scores: list[Score] = field(default_factory=list)
    """The scores of its first tokens."""
    n_score_bytes: int = 0
    blocks: list[BlockHash] = field(default_factory=list)
    """The blocks that end among its tokens; none without a journal."""
    checkpoint: Checkpoint | None = None
    """The recurrent state after its last token (caches.py)."""

    @property
    def n_cells_bytes(self) -> int:
        return self.saved.n_bytes + self.n_score_bytes

    @property
    def n_bytes(self) -> int:
        return self.n_cells_bytes + (0 if self.checkpoint is None else self.checkpoint.n_bytes)


class PrefixIndex:
    """Saved cells by token prefix, at most `limit_bytes` of them. `journal` gets the blocks that come and go."""

    def __init__(self, limit_bytes: int, journal: BlockJournal | None = None) -> None:
        self.limit_bytes = limit_bytes
        self._journal = journal
        self.n_tokens = 0
        """The number of tokens whose cells are kept; a shared prefix counts once."""
        self.n_bytes = 0
        """The bytes of all that is kept; never above the limit between two calls."""
        self._now = 0
        self._children: dict[bytes, Node] = {}
        self._leaves: OrderedDict[Node, None] = OrderedDict()
        """The longest unused first; before these, nodes that have lost their last child."""

    def match(self, tokens: Seq[TokenId]) -> int:
        """Return the length of the longest cached prefix of `tokens`. This does not count as a use: nothing changes."""
        return self._walk(tokens)[1]

    def take(self, tokens: Seq[TokenId], n_tokens: int) -> list[Saved]:
        """Return the parts that hold the first n_tokens ≤ match(tokens), in order, and mark them as used. The last part
        may hold more. They may be used for any time: a part is freed with its last reference."""
        path, n_matched = self._walk(tokens[:n_tokens])
        assert n_matched == n_tokens, "more than match() found"
        self._mark(path)
        return [node.saved for node in path]

    def scores(self, tokens: Seq[TokenId]) -> list[Score]:
        """Return the scores of the first of `tokens`, as far as they are kept. This does not count as a use."""
        path, n_matched = self._walk(tokens)
        found: list[Score] = []
        for node in path:
            found += node.scores
            if len(node.scores) < node.saved.n_tokens:
                break
        return found[:n_matched]

    def insert(self, tokens: Seq[TokenId], n_known: int, saved: Saved) -> None:
        """Keep the cells of positions [n_known, len(tokens)), where n_known == match(tokens) < len(tokens).

        Other leaves are evicted to make room. If the cells do not fit even with their own prefix alone, they are
        dropped and nothing changes.
        """
        path, n_matched = self._walk(tokens)
        assert n_known == n_matched < len(tokens), "there is nothing new, or not from n_known on"
        assert saved.n_tokens == len(tokens) - n_known
        if not self._cut_at(path, n_known, saved.n_bytes):
            return
        self._mark(path)
        parent = path[-1] if path else None
        if parent is not None:
            self._leaves.pop(parent, None)
        node = Node(_key(tokens[n_known:]), _packed(tokens[n_known:]), saved, parent, self._now)
        self._siblings(node)[node.key] = node
        self._leaves[node] = None
        self.n_tokens += saved.n_tokens
        self.n_bytes += saved.n_bytes
        if self._journal is not None:
            before = next((above.blocks[-1] for above in reversed(path) if above.blocks), None)
            node.blocks = self._journal.store_copies(before, tokens[n_known // BLOCK_TOKENS * BLOCK_TOKENS :])
        self._shrink()

    def restore(self, found: Found) -> int:
        """Keep what earlier engines have saved. Return of how many parts there was the prefix, and something new."""
        n_kept = 0
        for tokens, saved in found.parts:
            n_known, start = self.match(tokens), len(tokens) - saved.n_tokens
            if start <= n_known < len(tokens):
                self.insert(tokens, n_known, saved if n_known == start else saved.split(n_known - start)[1])
                n_kept += 1
        return n_kept

    def add_scores(self, tokens: Seq[TokenId], scores: Seq[Score]) -> None:
        """Keep the scores of the first of `tokens` with their cells, as far as these are kept, as `insert` does."""
        path, n_matched = self._walk(tokens[: len(scores)])
        ends = list(accumulate(node.saved.n_tokens for node in path))
        more = [
            scores[end - node.saved.n_tokens + len(node.scores) : min(end, n_matched)]
            for node, end in zip(path, ends, strict=True)
        ]
        n_more_bytes = [_n_score_bytes(new) for new in more]
        if not any(n_more_bytes) or sum(node.n_bytes for node in path) + sum(n_more_bytes) > self.limit_bytes:
            return
        for node, new, n_new_bytes in zip(path, more, n_more_bytes, strict=True):
            node.scores += new
            node.n_score_bytes += n_new_bytes
        self.n_bytes += sum(n_more_bytes)
        self._mark(path)
        self._shrink()

    def _walk(self, tokens: Seq[TokenId]) -> tuple[list[Node], int]:
        """Return the nodes that match, and how many tokens do; the last node's edge need not match to its end."""
        edges, path = _packed(tokens), list[Node]()
        at, children, key = 0, self._children, _key(tokens)
        while (node := children.get(key)) is not None:
            path.append(node)
            if not edges.startswith(node.edge, at):
                return path, (at + n_common(node.edge, edges[at : at + len(node.edge)])) // _WIDTH
            at += len(node.edge)
            children, key = node.children, edges[at : at + _WIDTH]
        return path, at // _WIDTH

    def _mark(self, path: list[Node]) -> None:
        """Note that the path was used now. Only its end can be a leaf."""
        self._now += 1
        for node in path:
            node.last_used = self._now
        if path and path[-1] in self._leaves:
            self._leaves.move_to_end(path[-1])

    def _cut_at(self, path: list[Node], end: int, n_more_bytes: int) -> bool:
        """Let the path end at a position in its last node. Return False, and change nothing, if `n_more_bytes` do not
        fit beside its cells.
        """
        n_bytes = sum(node.n_cells_bytes for node in path) + n_more_bytes
        n_over = sum(node.saved.n_tokens for node in path) - end
        halves = path[-1].saved.split(path[-1].saved.n_tokens - n_over) if n_over else None
        if halves is not None:
            n_bytes += halves[0].n_bytes - path[-1].saved.n_bytes
        if n_bytes > self.limit_bytes:
            return False
        if halves is not None:
            path[-1] = self._split(path[-1], end, *halves)
        return True

    def _split(self, node: Node, end: int, first: Saved, rest: Saved) -> Node:
        """Put a new node with the first cells, up to position `end`, above `node`, which keeps the rest, its children
        and its age.
        """
        self.n_bytes += first.n_bytes + rest.n_bytes - node.saved.n_bytes
        cut = first.n_tokens * _WIDTH
        upper = Node(node.key, node.edge[:cut], first, node.parent, node.last_used)
        self._siblings(node)[node.key] = upper
        n_blocks = end // BLOCK_TOKENS - (end - first.n_tokens) // BLOCK_TOKENS
        upper.blocks, node.blocks = node.blocks[:n_blocks], node.blocks[n_blocks:]
        upper.scores, node.scores = node.scores[: first.n_tokens], node.scores[first.n_tokens :]
        upper.n_score_bytes, node.n_score_bytes = _n_score_bytes(upper.scores), _n_score_bytes(node.scores)
        node.edge, node.saved, node.parent = node.edge[cut:], rest, upper
        node.key = node.edge[:_WIDTH]
        upper.children[node.key] = node
        return upper

    def _shrink(self) -> None:
        """Evict leaves until the limit holds: of the longest unused the one with the greatest age × bytes. The one that
        was used last goes last, because its age is 0."""
        while self.n_bytes > self.limit_bytes:
            oldest = islice(self._leaves, N_LOOKED_AT)
            leaf = max(oldest, key=lambda leaf: (self._now - leaf.last_used) * leaf.n_bytes)
            del self._leaves[leaf]
            del self._siblings(leaf)[leaf.key]
            self.n_tokens -= leaf.saved.n_tokens
            self.n_bytes -= leaf.n_bytes
            if self._journal is not None:
                self._journal.remove_copies(leaf.blocks)
            if leaf.parent is not None and not leaf.parent.children:
                self._leaves[leaf.parent] = None
                self._leaves.move_to_end(leaf.parent, last=False)

    def _siblings(self, node: Node) -> dict[bytes, Node]:
        return self._children if node.parent is None else node.parent.children


def _n_score_bytes(scores: Seq[Score]) -> int:
    return sum(map(len, scores)) + SCORE_BYTES * len(scores)


def _key(tokens: Seq[TokenId]) -> bytes:
    return salt_of(tokens) + _packed(tokens[:1])


def _packed(tokens: Seq[TokenId]) -> bytes:
    return array("i", tokens).tobytes()


def n_common(one: bytes | list[TokenId], other: bytes | list[TokenId]) -> int:
    """Return the length of their longest common prefix.

    Slices are compared in C, and halving needs few of them: the rest to compare halves as well, so each item is read
    about once.
    """
    if one[:1] != other[:1]:
        return 0
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
