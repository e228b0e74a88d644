"""Looking for drafts takes time, too: where they do not pay, most steps go without a look."""

from hypothesis import given
from hypothesis import strategies as st

from tests.engine.drafting.step_costs import GPU, cost
from tests.engine.fake_runner import FakeRunner, ToyModel
from worker.engine.channels import ChannelText
from worker.engine.config import EngineConfig
from worker.engine.drafting.drafts import LOOKING_SHARE, MAX_RESTING, Drafts
from worker.engine.drafting.lookups import HISTORY_BYTES, NgramLookup
from worker.engine.sequence import Sequence, State
from worker.engine.step import Step
from worker.wire.jobs import JobKey, SamplingParams, SlotId, TokenId

CELLS = 10_000


def decoding(slot: int, prompt: list[int], generated: int) -> Sequence:
    sequence = Sequence(
        JobKey(slot), [TokenId(token) for token in prompt], 1000, SamplingParams(seed=0), ChannelText(())
    )
    sequence.slot = SlotId(slot)
    for state in (State.FOLLOW, State.PREFILL):
        sequence.move(state)
    sequence.advance(len(prompt))
    sequence.append(TokenId(generated))
    return sequence


class Looks:
    """Drafts whose looks take `look_s` each by their clock; steps of sequences whose text goes on as given."""

    def __init__(self, look_s: float, n_rows: int) -> None:
        self.n_reads = 0
        self._look_s = look_s
        config = EngineConfig(
            n_slots=n_rows, n_cells=CELLS, context_length=CELLS, chunk=64, row_costs=GPU, history_bytes=HISTORY_BYTES
        )
        kv = FakeRunner.of(ToyModel(), config).kv
        self.drafts = Drafts(config, kv, clock=self._read, warn=print)
        self.running = {SlotId(slot): decoding(slot, [1000 + slot], 2000 + slot) for slot in range(n_rows)}
        for one in self.running.values():
            self.drafts.begin(one, ())

    def _read(self) -> float:
        self.n_reads += 1
        return self.n_reads * self._look_s

    @property
    def n_looks(self) -> int:
        return self.n_reads // 2

    def step(self, token: int) -> bool:
        """True if the step has drafts; after it each sequence has the next token."""
        step = Step("decode", tuple(one.decode_slice() for one in self.running.values()))
        has_drafts = self.drafts.added_to(step, self.running, CELLS) is not step
        self.drafts.catch_up(self.running, 1000)
        for one in self.running.values():
            one.advance(1)
            one.append(TokenId(token))
        return has_drafts


@given(look_s=st.floats(0, 0.15 * GPU[0][1]), n_rows=st.integers(1, 16), n_steps=st.integers(1, 200))
def test_looks_that_find_nothing_take_a_small_share_of_the_time(look_s: float, n_rows: int, n_steps: int) -> None:
    looks = Looks(look_s, n_rows)
    assert not any(looks.step(3000 + number) for number in range(n_steps)), "no token comes twice"
    assert (looks.n_looks - 1) * look_s <= LOOKING_SHARE * n_steps * cost(GPU, n_rows) * (1 + 1e-9)


def test_looks_that_cost_next_to_nothing_are_made_in_every_step() -> None:
    looks = Looks(0.5 * LOOKING_SHARE * GPU[0][1], 1)
    for number in range(50):
        looks.step(3000 + number)
    assert looks.n_looks == 50


def test_after_a_look_that_took_for_ever_drafts_are_found_again() -> None:
    looks = Looks(1e6, 1)
    assert not looks.step(5)
    had_drafts = [looks.step(7) for _ in range(3 * MAX_RESTING)]
    assert any(had_drafts[: 2 * MAX_RESTING])


@given(tokens=st.lists(st.integers(0, 5), min_size=1, max_size=60), cuts=st.lists(st.integers(1, 9), min_size=1))
def test_a_text_that_is_taken_in_by_parts_has_the_same_drafts(tokens: list[int], cuts: list[int]) -> None:
    text: list[TokenId] = []
    at_once = [TokenId(token) for token in tokens]
    by_parts = NgramLookup(text)
    for number, token in enumerate(tokens):
        text.append(TokenId(token))
        if number % cuts[number % len(cuts)] == 0:
            assert by_parts.catch_up(3) <= 3
    assert by_parts.propose(8) == NgramLookup(at_once).propose(8)
