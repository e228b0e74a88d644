"""BlockJournal by example, and its law: replayed, it gives what the slots and the copies hold, whatever happens."""

import subprocess
import sys
from hashlib import blake2b

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from tests.engine.fake_cells import Memory, ids, numbered, remember
from tests.engine.fake_runner import Request
from tests.engine.test_loop_laws import UNSCORABLE, Anything
from tests.engine.toy_constraint import N_VOCAB
from tests.kv_mirror import Mirror, blocks_of, gone, kept
from tests.queued import put_away
from worker.engine.kv_blocks import BlockJournal, block_hashes
from worker.engine.prefix_tree import PrefixIndex
from worker.wire.jobs import SlotId
from worker.wire.messages import BlockStored

LAW = settings(max_examples=40, stateful_step_count=20, report_multiple_bugs=False)

ONE, TWO = SlotId(0), SlotId(1)
A = list(numbered(100, 50))


def test_a_hash_is_that_of_the_parent_and_the_tokens_as_the_docs_say() -> None:
    parent, expected = bytes(8), []
    for start in (0, 16, 32):
        tokens = b"".join(token.to_bytes(4, "little") for token in A[start : start + 16])
        parent = blake2b(parent + tokens, digest_size=8).digest()
        expected.append(int.from_bytes(parent, "big"))
    assert block_hashes(None, A) == expected
    assert block_hashes(block_hashes(None, A[:16])[0], A[16:]) == expected[1:]


def test_another_process_gives_the_same_hashes() -> None:
    script = "from worker.engine.kv_blocks import block_hashes; print(block_hashes(None, range(40)))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout == f"{block_hashes(None, ids(range(40)))}\n"
    assert block_hashes(None, ids(range(40))) == [10562688794949993614, 10623002194260461768], (
        "nor does another release"
    )


def test_a_block_is_reported_when_its_last_token_is_computed() -> None:
    journal = BlockJournal()
    assert journal.take([(ONE, A, 15)]) == ()
    first, second = block_hashes(None, A)[:2]
    assert journal.take([(ONE, A, 17)]) == (kept("GPU", None, (first,), tuple(A[:16])),)
    assert journal.take([(ONE, A, 31)]) == ()
    assert journal.take([(ONE, A, 32)]) == (kept("GPU", first, (second,), tuple(A[16:32])),)


def test_what_two_slots_hold_is_reported_once_and_gone_with_the_last() -> None:
    journal, also = BlockJournal(), [*A[:40]]
    blocks = tuple(block_hashes(None, A)[:2])
    assert len(journal.take([(ONE, A, 32), (TWO, also, 40)])) == 1
    assert journal.take([(TWO, also, 40)]) == ()
    assert journal.take([]) == (gone("GPU", blocks[::-1]),)


def test_what_goes_from_one_slot_to_another_was_never_gone() -> None:
    journal = BlockJournal()
    journal.take([(ONE, A, 32)])
    assert journal.take([(TWO, A[:35], 35)]) == ()


def test_another_sequence_in_the_slot_has_the_blocks_that_it_shares_already() -> None:
    journal, other = BlockJournal(), [*A[:20], *numbered(7, 30)]
    journal.take([(ONE, A, 48)])
    stored, removed = journal.take([(ONE, other, 32)])
    first, *rest = block_hashes(None, A)
    assert isinstance(stored, BlockStored)
    assert (stored.parent_block_hash, stored.token_ids) == (first, tuple(other[16:32]))
    assert removed == gone("GPU", tuple(rest[::-1]))


@pytest.mark.parametrize("n_common", [1, 15, 16, 17, 31, 32, 40, 48, 49])
def test_splitting_an_edge_reports_nothing_but_the_new_branch(n_common: int) -> None:
    journal, mirror, memory = BlockJournal(), Mirror(), Memory()
    index = PrefixIndex(10**9, journal)
    remember(index, memory, tuple(A))
    mirror.hear(journal.take([]))
    branch = (*A[:n_common], *numbered(7, 40))
    remember(index, memory, branch)
    reported = journal.take([])
    assert [type(change) for change in reported] == [BlockStored]
    mirror.hear(reported)
    assert mirror.blocks("CPU") == blocks_of(A) | blocks_of(branch)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Long prompts of few families, which part anywhere."""
    family, n_common, n_own = draw(st.integers(0, 2)), draw(st.integers(0, 60)), draw(st.integers(0, 40))
    start = draw(st.integers(0, 3))
    sums = [family + i * i for i in range(n_common)] + [start + 7 * i for i in range(n_own + 1)]
    prompt = tuple(UNSCORABLE + 1 + n % (N_VOCAB - UNSCORABLE - 1) for n in sums)
    constraint, prompt_logprobs = draw(st.none() | st.integers(0, 5)), draw(st.sampled_from((None, None, 0)))
    return Request(prompt, draw(st.integers(0, 40)), seed=start, constraint=constraint, prompt_logprobs=prompt_logprobs)


class AnyBlocks(Anything):
    """Anything, with prompts of several blocks. The rig compares the reports with the blocks after each step."""

    context_length = 140
    reports_blocks = True

    @rule(wanted=st.lists(requests(), min_size=1, max_size=4))
    def arrive(self, wanted: list[Request]) -> None:
        for request in wanted:
            self.rig.submit(request)

    @precondition(lambda self: not self.rig.engine.is_idle)
    @rule()
    def go_on_to_the_end(self) -> None:
        self.rig.run_until_idle()

    @precondition(lambda self: self.rig.engine.is_idle)
    @rule()
    def no_client_wants_anything(self) -> None:
        put_away(self.rig.engine)
        self.rig.engine.step()

    @rule(has_memory=st.booleans())
    def main_memory_runs_out_or_not(self, has_memory: bool) -> None:
        self.rig.runner.kv.has_host_memory = has_memory


@pytest.mark.long
def test_whatever_happens_what_is_reported_is_what_there_is() -> None:
    run_state_machine_as_test(AnyBlocks, settings=LAW)
