"""Prompts of different salts share nothing, and those of one salt share as prompts without one do.

The engine's laws hold for salted prompts as well (test_loop_laws.py), and the rig compares each job's cached tokens
with the texts of its own salt.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.fake_cells import Cells, Memory, Tokens, ids
from tests.engine.fake_runner import CELL_BYTES, Request
from tests.engine.rig import Rig
from tests.kv_mirror import Mirror
from worker.engine.kv_blocks import BLOCK_TOKENS, BlockJournal, block_hashes
from worker.engine.prefix_tree import PrefixIndex, n_common
from worker.engine.step import salt_of, salted
from worker.wire.jobs import Finished, SlotId, TokenId
from worker.wire.messages import BlockRemoved

SALTS = (b"", b"one", b"two")

salts = st.sampled_from(SALTS)
texts = st.lists(st.sampled_from(ids([0, 1, 256])), min_size=1, max_size=12)
EARLIER, LATER = tuple(range(5, 45)), (*range(5, 40), 99)
"""Two prompts with 35 tokens in common."""


@given(texts, texts, salts, salts)
def test_texts_are_equal_only_with_the_same_salt(
    one: list[TokenId], two: list[TokenId], salt: bytes, other: bytes
) -> None:
    """Texts are compared whole, in part, by a token, and as keys."""
    n_same = n_common(one, two) if salt == other else 0
    first, second = salted(one, salt), salted(two, other)
    assert n_common(first, second) == n_common(second, first) == n_same
    assert (first == second, second == first) == (n_same == len(one) == len(two),) * 2
    assert (first != second, second != first) == (n_same != len(one) or len(one) != len(two),) * 2
    assert (first[0] == second[0]) == (n_same > 0)
    assert len({tuple(first), tuple(second)}) == 1 + (first != second)
    assert [int(token) for token in first] == one
    assert (salt_of(first), salt_of(first[1:]), salt_of([])) == (salt, b"", b"")


@given(st.lists(st.tuples(salts, texts), max_size=12), salts, texts, st.sampled_from((60, 200, 10**9)))
@settings(max_examples=300)
def test_the_index_finds_the_longest_prefix_of_the_same_salt(
    kept: list[tuple[bytes, list[TokenId]]], salt: bytes, text: list[TokenId], limit_bytes: int
) -> None:
    index, memory = PrefixIndex(limit_bytes), Memory()
    for each in kept:
        tokens: Tokens = tuple(salted(each[1], each[0]))
        if (n_known := index.match(tokens)) < len(tokens):
            index.insert(tokens, n_known, memory.save(tokens, n_known))
    alive = [cells.path for cells in memory.alive]
    n_matched = index.match(salted(text, salt))
    assert n_matched == max((n_common([*path], salted(text, salt)) for path in alive), default=0)
    for part in index.take(salted(text, salt), n_matched):
        assert isinstance(part, Cells)
        assert salt_of(part.path) == salt


def cached(rig: Rig, *requests: Request) -> list[int]:
    """The cached tokens that each job reports, one after the other."""
    found = []
    for request in requests:
        job = rig.submit(request)
        rig.run_until_idle()
        found.append(rig.n_cached[job])
    rig.check_stories()
    return found


def test_a_later_job_finds_only_the_cells_of_its_own_salt() -> None:
    """The cells are in retained slots, and they are copies when other jobs have taken these."""
    for n_retained in (0, 1, 4):
        rig = Rig(prefix_cache_bytes=1000 * CELL_BYTES, n_retained=n_retained)
        earlier = [Request(EARLIER, 4, salt=salt) for salt in (b"one", b"two")]
        later = [Request(LATER, 4, salt=salt) for salt in (b"", b"one", b"two", b"three")]
        assert cached(rig, *earlier, *later) == [0, 0, 0, 35, 35, 0]


def test_a_salt_is_part_of_the_hash_of_the_first_block_and_so_of_all() -> None:
    """The reports of two salts are two chains of blocks of the same tokens, as with vLLM."""
    tokens = list(ids(range(100, 100 + 3 * BLOCK_TOKENS)))
    chains = [block_hashes(None, salted(tokens, salt)) for salt in SALTS]
    assert len({block for chain in chains for block in chain}) == len(SALTS) * 3
    assert chains[0] == block_hashes(None, tokens)
    journal, mirror = BlockJournal(), Mirror()
    mirror.hear(journal.take([(SlotId(i), salted(tokens, salt), len(tokens)) for i, salt in enumerate(SALTS)]))
    assert list(mirror.held["GPU"]) == [block for chain in chains for block in chain]
    assert {type(token) for path in mirror.held["GPU"].values() for token in path} == {int}
    (removed,) = journal.take([])
    assert isinstance(removed, BlockRemoved)
    assert sorted(removed.block_hashes) == sorted(mirror.held["GPU"])


def test_a_salted_answer_is_no_draft_for_other_jobs() -> None:
    """Nor is another's a draft for a salted job: a client could measure which answers were given."""
    costs = ((1, 1.0), (32, 1.1))
    for salts_of_two, are_drafts in (((b"", b""), True), ((b"", b"one"), False), ((b"one", b""), False)):
        rig = Rig(row_costs=costs, history_bytes=10_000)
        first, second = (Request((7, 8, 9, 10, 11, 12), 40, seed=3, salt=salt) for salt in salts_of_two)
        cached(rig, first)
        cached(rig, second)
        end = rig.stories[1].end
        assert isinstance(end, Finished)
        assert (end.n_accepted > 20) == are_drafts, salts_of_two
