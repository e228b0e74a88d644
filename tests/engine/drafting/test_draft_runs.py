"""Whole runs by their modelled cost: drafts make repetitive text faster and never slow a job, whatever is drawn."""

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.drafting.draft_rig import CPU, GPU, MATCHES, N_MOST, RIGHT, WRONG, Costs, cost, draft_of, row_costs
from tests.engine.fake_runner import FakeRunner, ToyModel
from worker.engine.channels import ChannelText
from worker.engine.config import EngineConfig
from worker.engine.drafting.drafts import LOOKING_SHARE, MAX_RESTING, Drafts
from worker.engine.drafting.lookups import HISTORY_BYTES, EarlierAnswers, History, NgramLookup
from worker.engine.drafting.pricing import MAX_LOST, Acceptance, Account, Proposal, Speculation
from worker.engine.sequence import Sequence, State
from worker.engine.step import Step
from worker.wire.jobs import JobKey, SamplingParams, SlotId, TokenId

LAW = settings(max_examples=200)


def worst_stretch_s(spent_s: list[float], plain_s: list[float]) -> float:
    """The seconds by which the worst stretch of the run exceeded its permitted cost."""
    worst = lowest = excess = 0.0
    for spent, plain in zip(spent_s, plain_s, strict=True):
        excess += spent - (1 + MAX_LOST) * plain
        lowest = min(lowest, excess)
        worst = max(worst, excess - lowest)
    return worst


def worst_case(
    costs: Costs, n_jobs: int, n_most: int, fates: list[int], matches: list[int], *, switch_s: float = 0.0
) -> float:
    """Return how far the worst stretch went.

    `fates` are the numbers of right tokens of a job's next drafts, draft by draft. `matches` belong to each source's
    drafts. The last source's are judged over all jobs together, as others' answers are. `switch_s` is the cost of each
    step with drafts beyond its width.
    """
    speculation = Speculation(costs, n_most, switch_s)
    accounts, shared = [Account() for _ in range(n_jobs)], Acceptance()
    sources = [[*(Acceptance() for _ in matches[1:]), shared] for _ in range(n_jobs)]
    drafts = [draft_of(n_most, n_matched) for n_matched in matches]
    spent_s, plain_s = [], []
    n = 0
    for _ in range(200):
        proposals = [
            [Proposal(account, *each) for each in zip(of_job, drafts, strict=True)]
            for account, of_job in zip(accounts, sources, strict=True)
        ]
        counts = speculation.plan([speculation.best(of_job, n_jobs) for of_job in proposals])
        n_drawn = 0
        for account, of_job, count in zip(accounts, proposals, counts, strict=True):
            # A token that was not taken is wrong if the fate says so. Otherwise it would have been right: that lures.
            n_right = min(count, fates[n % len(fates)])
            n += count > 0
            drawn = [RIGHT] * n_right + [WRONG if n_right < count else RIGHT]
            account.won(n_right)
            for proposal in of_job:
                proposal.acceptance.saw(proposal.draft, drawn)
            n_drawn += len(drawn)
        spent_s.append(cost(costs, n_jobs + sum(counts)) + (switch_s if any(counts) else 0.0))
        plain_s.append(n_drawn * cost(costs, n_jobs) / n_jobs)
    return worst_stretch_s(spent_s, plain_s)


@pytest.mark.long
@LAW
@given(
    costs=row_costs() | st.sampled_from((CPU, GPU)),
    n_jobs=st.integers(1, 4),
    n_most=st.integers(1, N_MOST),
    fates=st.lists(st.integers(0, N_MOST), min_size=1, max_size=12),
    matches=st.lists(MATCHES, min_size=1, max_size=3),
    switch=st.sampled_from((0.0, 0.1, 0.6, 3.0)),
)
def test_no_stretch_of_a_run_is_slowed_whatever_is_accepted(
    costs: Costs, n_jobs: int, n_most: int, fates: list[int], matches: list[int], *, switch: float
) -> None:
    """Even where the draws are chosen to mislead, it costs (1 + MAX_LOST) times as much and one widest step a job,
    from however many sources the drafts come. `switch`: what a change of width costs, in steps of one token."""
    switch_s = switch * costs[0][1]
    allowed_s = n_jobs * (cost(costs, min(1 + n_most, costs[-1][0])) + switch_s)
    assert worst_case(costs, n_jobs, n_most, fates, matches, switch_s=switch_s) <= allowed_s * (1 + 1e-9)


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """The memory that a worker keeps from job to job."""

    history: History = field(default_factory=lambda: History(HISTORY_BYTES))
    acceptance: Acceptance = field(default_factory=Acceptance)


def run_s(prompt: list[TokenId], text: list[TokenId], costs: Costs = CPU, before: WorkerMemory | None = None) -> float:
    """Modelled seconds to generate the text, one job alone, with what the worker has generated before."""
    before = before or WorkerMemory()
    held = list(prompt)
    speculation, account = Speculation(costs, N_MOST), Account()
    lookups = [NgramLookup(held), EarlierAnswers(before.history, held, before.acceptance)]
    n_done, spent_s = 0, 0.0
    while n_done < len(text):
        n_most = speculation.most_drafts(1)
        proposals = [Proposal(account, lookup.acceptance, lookup.propose(n_most)) for lookup in lookups]
        best = speculation.best(proposals, 1)
        (count,) = speculation.plan([best])
        n_right = 0
        while n_right < count and best.draft.tokens[n_right : n_right + 1] == tuple(text[n_done + n_right :][:1]):
            n_right += 1
        drawn = text[n_done : n_done + n_right + 1]
        account.won(n_right)
        for proposal in proposals:
            proposal.acceptance.saw(proposal.draft, drawn)
        held += drawn
        n_done += n_right + 1
        spent_s += cost(costs, 1 + count)
    before.history.remember(held, len(prompt))
    while before.history.read(7):
        pass
    return spent_s


def speed_up(
    prompt: list[TokenId], text: list[TokenId], costs: Costs = CPU, before: WorkerMemory | None = None
) -> float:
    return len(text) * costs[0][1] / run_s(prompt, text, costs, before)


def words(n: int, seed: int, n_vocab: int = 40_000) -> list[TokenId]:
    chance = Random(seed)
    return [TokenId(chance.randrange(n_vocab)) for _ in range(n)]


@pytest.mark.parametrize("period", [1, 2, 7, 50])
def test_a_text_that_repeats_itself_is_half_as_fast_again_on_a_cpu(period: int) -> None:
    once = [TokenId(i) for i in range(period)]
    text = once * (256 // period)
    assert speed_up(once, text) >= 1.5
    assert speed_up(once, text, GPU) >= 10


def test_an_edited_copy_of_the_prompt_is_half_as_fast_again_on_a_cpu() -> None:
    """One token in 25 is another."""
    prompt = words(500, seed=1)
    text = list(prompt)
    text[::25] = words(20, seed=2)
    assert speed_up(prompt, text) >= 1.5


@pytest.mark.parametrize("n_vocab", [5, 50, 500])
def test_chance_repetitions_cost_next_to_nothing(n_vocab: int) -> None:
    assert speed_up(words(400, 4, n_vocab), words(1000, 5, n_vocab)) >= 0.98


@pytest.mark.parametrize("n_before", [100, 3000])
def test_drafts_begin_soon_when_the_text_begins_to_repeat(n_before: int) -> None:
    """After any length of chance repetitions that taught it to have no drafts."""
    before = words(n_before, 6, n_vocab=30)
    loop = [TokenId(100 + i) for i in range(10)] * 30
    saved_s = run_s([], before) + len(loop) * CPU[0][1] - run_s([], before + loop)
    assert len(loop) * CPU[0][1] / (len(loop) * CPU[0][1] - saved_s) >= 1.5


def form(seed: int, n_fields: int = 30) -> list[TokenId]:
    """The text that all forms share, and one token of its own in each field."""
    chance, frame = Random(seed), words(5 * n_fields, seed=99)
    return [
        token
        for at in range(0, len(frame), 5)
        for token in (*frame[at : at + 5], TokenId(50_000 + chance.randrange(40_000)))
    ]


def test_a_form_in_the_prompt_is_filled_in_a_third_faster_on_a_cpu() -> None:
    """One token in six is another: each time the text goes on behind it."""
    assert speed_up(form(1), form(2)) >= 1.33
    assert speed_up(form(1), form(2), GPU) >= 4


def test_what_another_job_generated_is_half_as_fast_again_on_a_cpu() -> None:
    before, text = WorkerMemory(), words(200, seed=20)
    assert speed_up(words(50, seed=21), text, before=before) == pytest.approx(1)
    assert speed_up(words(50, seed=22), text, before=before) >= 1.5


@pytest.mark.parametrize("n_vocab", [5, 50, 500])
def test_answers_that_are_alike_by_chance_cost_next_to_nothing(n_vocab: int) -> None:
    before = WorkerMemory()
    gains = [speed_up(words(40, 30 + i, n_vocab), words(100, 60 + i, n_vocab), before=before) for i in range(20)]
    assert sum(gains) / len(gains) >= 0.98


def test_others_answers_that_always_mislead_are_soon_no_longer_followed() -> None:
    """Each text begins as all others do, and goes on in a way of its own: what is learned outlives the job."""
    before = WorkerMemory()
    beginning = words(9, seed=40)
    gains = [speed_up([], [*beginning, *words(11, seed=41 + i)], before=before) for i in range(40)]
    assert min(gains[10:]) >= 0.97


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
