"""The laws of PrefixIndex under chance: random trees over few tokens, any limit, pressure.

The plain model is what is alive in the memory: while no job holds parts, that is what the index owns.
"""

from itertools import takewhile

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.engine.fake_cells import Cells, Memory, Tokens
from tests.kv_mirror import Mirror, blocks_of
from worker.engine.backend import Saved
from worker.engine.kv_blocks import BlockJournal
from worker.engine.prefix_tree import SCORE_BYTES, PrefixIndex
from worker.engine.step import Score
from worker.wire.jobs import TokenId

LAW = settings(max_examples=300)
LAW_OF_STATES = settings(LAW, max_examples=150, stateful_step_count=25, report_multiple_bugs=False)

TOKENS = tuple(TokenId(token) for token in (0, 1, 256, 1 << 24))
"""Few, so that prefixes are shared; and each is another's bytes, shifted."""

Node = tuple[Tokens, int]
"""A node as a value: the whole path to its end, and the position where its cells begin."""


@st.composite
def runs(draw: st.DrawFn) -> Tokens:
    """Long sequences in few words: a token and how often it comes."""
    drawn = draw(st.lists(st.tuples(st.sampled_from(TOKENS), st.integers(1, 9)), min_size=1, max_size=4))
    return tuple(token for token, n_times in drawn for _ in range(n_times))


sequences = st.lists(st.sampled_from(TOKENS[:3]), min_size=1, max_size=8).map(tuple) | runs()


def prefixes(tokens: Tokens, start: int = 0) -> list[Tokens]:
    return [tokens[:n] for n in range(start + 1, len(tokens) + 1)]


def tokens_of(parts: list[Saved]) -> Tokens:
    return tuple(token for part in parts if isinstance(part, Cells) for token in part.tokens)


def score_of(path: Tokens) -> Score:
    """The score of a path's last token; its length differs from its neighbours'."""
    return Score(bytes([path[-1] & 0xFF]) * (len(path) % 3))


def split_at(nodes: set[Node], path: Tokens) -> set[Node]:
    """The nodes, of which the one around the end of `path` is cut there."""
    around = {(whole, start) for whole, start in nodes if start < len(path) < len(whole) and whole[: len(path)] == path}
    halves = {half for whole, start in around for half in ((path, start), (whole, len(path)))}
    return (nodes - around) | halves


def leaves(nodes: set[Node]) -> set[Node]:
    continued = {whole[:start] for whole, start in nodes}
    return {node for node in nodes if node[0] not in continued}


class AnyTree(RuleBasedStateMachine):
    """Jobs end, prompts arrive; each insert is compared with what a reader of the rules would expect."""

    index: PrefixIndex
    memory: Memory

    @initialize(n_cells=st.sampled_from((0, 3, 10, 20, 40, 80, 1000)), header_bytes=st.sampled_from((0, 1, 15)))
    def begin(self, n_cells: int, header_bytes: int) -> None:
        self.limit_bytes = 10 * n_cells
        self.journal, self.mirror = BlockJournal(), Mirror()
        self.index, self.memory = PrefixIndex(self.limit_bytes, self.journal), Memory(header_bytes)
        self.n_operations = 0
        self.last_used: dict[Tokens, int] = {}
        self.scored: set[Tokens] = set()
        """Paths whose last token's score is kept with its cell."""

    def nodes(self) -> set[Node]:
        return {(cells.path, cells.start) for cells in self.memory.alive}

    def n_matched(self, tokens: Tokens) -> int:
        kept = {prefix for whole, start in self.nodes() for prefix in prefixes(whole, start)}
        return max((len(prefix) for prefix in prefixes(tokens) if prefix in kept), default=0)

    def n_bytes(self, nodes: set[Node]) -> int:
        scored = [path for whole, start in nodes for path in prefixes(whole, start) if path in self.scored]
        cells_bytes = sum(self.memory.n_bytes(len(whole) - start) for whole, start in nodes)
        return cells_bytes + sum(len(score_of(path)) + SCORE_BYTES for path in scored)

    def score(self, node: Node) -> int:
        return (self.n_operations - self.last_used[node[0]]) * self.n_bytes({node})

    def use(self, path: Tokens) -> None:
        self.n_operations += 1
        self.last_used |= dict.fromkeys(prefixes(path), self.n_operations)

    @rule(tokens=sequences)
    def a_prompt_arrives(self, tokens: Tokens) -> None:
        before = self.nodes()
        assert self.index.match(tokens) == self.n_matched(tokens)
        assert self.nodes() == before

    @rule(tokens=sequences, n_fewer=st.integers(0, 3))
    def a_prompt_takes_what_it_finds(self, tokens: Tokens, n_fewer: int) -> None:
        n_tokens = max(0, self.index.match(tokens) - n_fewer)
        parts = self.index.take(tokens, n_tokens)
        assert tokens_of(parts)[:n_tokens] == tokens[:n_tokens]
        assert sum(part.n_tokens for part in parts[:-1]) <= max(0, n_tokens - 1)
        self.use(parts[-1].path if parts and isinstance(parts[-1], Cells) else ())

    @rule(tokens=sequences)
    def a_job_ends(self, tokens: Tokens) -> None:
        n_known = self.index.match(tokens)
        if n_known == len(tokens):
            return
        before = self.nodes()
        self.index.insert(tokens, n_known, self.memory.save(tokens, n_known))
        with_room = split_at(before, tokens[:n_known]) | {(tokens, n_known)}
        its_path = {(whole, start) for whole, start in with_room if whole == tokens[: len(whole)]}
        if self.n_bytes(its_path) > self.limit_bytes:
            assert self.nodes() == before, "dropped, and nothing went for it"
        else:
            self.use(tokens)
            self.check_evictions(with_room, its_path)

    @rule(tokens=sequences)
    def scores_of_a_prompt_are_known(self, tokens: Tokens) -> None:
        before = self.nodes()
        new = {path for path in prefixes(tokens)[: self.n_matched(tokens)] if path not in self.scored}
        its_path = {(whole, start) for whole, start in before if tokens[: start + 1] == whole[: start + 1]}
        n_bytes = self.n_bytes(its_path) + sum(len(score_of(path)) + SCORE_BYTES for path in new)
        self.index.add_scores(tokens, [score_of(path) for path in prefixes(tokens)])
        if not new or n_bytes > self.limit_bytes:
            assert self.nodes() == before, "dropped, and nothing went for it"
        else:
            self.scored |= new
            self.use(max((whole for whole, _ in its_path), key=len))
            self.check_evictions(before, its_path)

    def check_evictions(self, with_room: set[Node], its_path: set[Node]) -> None:
        """Only leaves, and of these the old and large, and no more than had to."""
        after = self.nodes()
        gone = with_room - after
        assert its_path <= after <= with_room
        assert {whole[:start] for whole, start in after if start} <= {whole for whole, _ in after}
        if gone:
            assert self.n_bytes(after) + max(self.n_bytes({node}) for node in gone) > self.limit_bytes
        stayed = max((self.score(node) for node in leaves(with_room) & after), default=0)
        assert all(2 * self.score(node) > stayed for node in gone)
        self.scored -= {path for whole, start in gone for path in prefixes(whole, start)}

    @invariant()
    def bytes_and_tokens_are_conserved_within_the_limit(self) -> None:
        if not hasattr(self, "index"):
            return
        assert self.index.n_bytes == self.n_bytes(self.nodes()) <= self.limit_bytes
        assert self.index.n_tokens == self.memory.n_alive_tokens
        assert self.index.n_tokens == len({prefix for node in self.nodes() for prefix in prefixes(*node)})

    @invariant()
    def the_blocks_that_are_reported_are_those_that_are_kept(self) -> None:
        if hasattr(self, "index"):
            self.mirror.hear(self.journal.take(()))
            assert self.mirror.blocks("CPU") == {path for whole, _ in self.nodes() for path in blocks_of(whole)}

    @invariant()
    def whatever_is_kept_is_found_and_nothing_else(self) -> None:
        """The path of a node that was just evicted is no longer matched to its end."""
        for path in getattr(self, "last_used", ()):
            assert self.index.match(path) == self.n_matched(path)
            known = takewhile(self.scored.__contains__, prefixes(path))
            assert self.index.scores(path) == [score_of(prefix) for prefix in known]


@pytest.mark.long
def test_whatever_comes_the_index_finds_what_it_keeps_and_keeps_its_limit() -> None:
    run_state_machine_as_test(AnyTree, settings=LAW_OF_STATES)
