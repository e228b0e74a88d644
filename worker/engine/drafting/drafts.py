"""Drafts in decode steps: the best draft of any source, with as many tokens as pay, judged by the draws.

This module owns which jobs have drafts. lookups.py and draft_model.py find or make them, and pricing.py prices them. No
step takes a draft only to find out whether it would be right.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq

from msgspec.structs import replace

from worker.engine.backend import Kv, LoadedDraft
from worker.engine.config import EngineConfig
from worker.engine.drafting.draft_model import DraftModel, Proposals, Running
from worker.engine.drafting.even import EvenSpeculation
from worker.engine.drafting.lookups import EarlierAnswers, History, NgramLookup, Predicted
from worker.engine.drafting.pricing import NO_DRAFT, Acceptance, Proposal, Speculation
from worker.engine.sequence import Sequence, State
from worker.engine.step import Sampled, Step, salt_of
from worker.limits import MAX_DRAFTS
from worker.wire.jobs import SlotId, TokenId

LOOKING_SHARE = 0.01
"""The share of the steps' time that may go into looking for drafts that do not pay. On a CPU the look never takes as
long; on a GPU the lookups of 16 jobs take 0.25 ms of a step of 7."""
MAX_RESTING = 16
"""The most steps in a row without a look: one look that something else delayed must not end all drafts."""
N_READ = 256
"""The number of tokens of finished jobs that are indexed after a step, at about a microsecond each."""

_UNJUDGED = Acceptance()

DraftSource = Callable[[Running, int, Proposals], float]
"""(sequences of a step, n_most, proposals so far) → the seconds that it took to make drafts, which the step has to win
back. It adds drafts of at most n_most tokens to the proposals. Every draw judges all of these, also what the step does
not take."""


def look_up(sequences: Running, n_most: int, found: Proposals) -> float:
    """The `DraftSource` of the drafts that are looked up in texts."""
    for slot, sequence in sequences.items():
        n_wanted = sequence.n_draftable(n_most)
        for lookup in sequence.lookups:
            draft = lookup.propose(n_wanted)
            if draft.tokens:
                found[slot].append(Proposal(sequence.account, lookup.acceptance, sequence.permitted(draft)))
    return 0.0


class Drafts:
    """The drafts of all jobs. There are none if the configuration has no `row_costs`, or if wrong ones cannot be taken
    from `kv`. If it has recurrent state, all drafts of a step have the same number of tokens. `draft` is a draft model
    or the model's own next-token head. `clock` gives seconds. `warn` gets failures of the draft model.
    """

    def __init__(
        self,
        config: EngineConfig,
        kv: Kv,
        *,
        clock: Callable[[], float],
        draft: LoadedDraft | None = None,
        warn: Callable[[str], None],
    ) -> None:
        n_each, costs = kv.max_undone, config.row_costs if kv.max_undone else ()
        is_even = kv.has_state and n_each
        kind, n_most = (EvenSpeculation, n_each) if is_even else (Speculation, MAX_DRAFTS)
        self._speculation = kind(costs, n_most, config.switch_s)
        self._is_on, self._has_own_text = bool(costs), config.has_own_text
        self._history, self._of_earlier = History(config.history_bytes if costs else 0), Acceptance()
        self._sources: list[DraftSource] = [look_up]
        if draft is not None and draft.row_costs and costs:
            n_most = min(config.draft_max, n_each)
            model = DraftModel(draft, self._speculation, config, n_most=n_most, clock=clock, warn=warn)
            self._sources.append(model.propose)
        self._has_lookups_alone = len(self._sources) == 1
        self._clock = clock
        self._proposals: dict[SlotId, list[Proposal]] = {}
        """The proposals of all sources for the current step, also those that the step did not take."""
        self._n_resting = 0
        """The number of steps until the next look for drafts."""

    def begin(self, sequence: Sequence, prediction: Seq[TokenId]) -> None:
        """Give a new job its lookups: in its own text, in the text that its client predicts, in earlier answers."""
        if self._is_on and self._has_own_text:
            sequence.lookups.append(NgramLookup(sequence.tokens))
            if prediction:
                sequence.lookups.append(Predicted(prediction, sequence.generated))
        if self._history.n_bytes and not salt_of(sequence.prompt):
            sequence.lookups.append(EarlierAnswers(self._history, sequence.tokens, self._of_earlier))

    def remember(self, sequence: Sequence) -> None:
        """Keep a copy of a finished job's answer, unless it is salted; `learn` indexes it."""
        if not salt_of(sequence.prompt):
            self._history.remember(sequence.tokens, len(sequence.prompt))

    def learn(self, *, is_idle: bool) -> None:
        """Index the answers of finished jobs for other jobs: all of them if the engine is idle, otherwise a part."""
        while self._history.read(N_READ) and is_idle:
            pass

    def catch_up(self, running: Running, n_most: int) -> None:
        """Index at most n_most tokens while a device computes: after a long prompt a look would take milliseconds."""
        for sequence in running.values():
            for lookup in sequence.lookups:
                n_most -= lookup.catch_up(n_most)

    def added_to(self, step: Step, running: Running, n_free_cells: int) -> Step:
        """Return the step with drafts, if it is a decode step, drafts pay and have room, and no prompt waits for it."""
        self._proposals = {}
        if step.kind != "decode" or not self._is_on or step.n_tokens + MAX_DRAFTS > n_free_cells:
            return step
        if any(sequence.state is State.PREFILL for sequence in running.values()):
            return step
        if self._n_resting:
            self._n_resting -= 1
            return step
        began_s = self._clock()
        drafted = self._with_drafts(step, running)
        if drafted is step and self._has_lookups_alone:
            spent_s, step_s = self._clock() - began_s, self._speculation.cost_s(len(step.slices))
            self._n_resting = min(MAX_RESTING, int(spent_s / (LOOKING_SHARE * step_s))) if step_s else 0
        return drafted

    def _with_drafts(self, step: Step, running: Running) -> Step:
        n_most = self._speculation.most_drafts(len(step.slices))
        if n_most == 0:
            return step
        sequences = {slice_.slot: running[slice_.slot] for slice_ in step.slices}
        self._proposals = {slot: [Proposal(each.account, _UNJUDGED, NO_DRAFT)] for slot, each in sequences.items()}
        made_s = sum(propose(sequences, n_most, self._proposals) for propose in self._sources)
        best = [self._speculation.best(proposals, len(sequences)) for proposals in self._proposals.values()]
        if self._has_lookups_alone and not any(proposal.draft.tokens for proposal in best):
            return step
        counts = self._speculation.plan(best, made_s)
        if not any(counts):
            return step
        slices = [
            running[slice_.slot].decode_slice(proposal.draft.tokens[:count]) if count else slice_
            for slice_, proposal, count in zip(step.slices, best, counts, strict=True)
        ]
        return replace(step, slices=self._speculation.in_order(slices))

    def judge(self, step: Step, sampled: Seq[Sampled], running: Running, seconds: float) -> tuple[int, int]:
        """Learn from a step that ran, before its draws are applied. Return the number of draft tokens that it computed,
        and how many of these were drawn."""
        if step.kind != "decode" or not self._is_on:
            return 0, 0
        self._speculation.took(step.n_tokens, seconds, has_drafts=any(each.n_drafts for each in step.slices))
        if not self._proposals:
            return 0, 0
        drawn: dict[SlotId, list[TokenId]] = {}
        for each in sampled:
            drawn.setdefault(each.slot, []).append(each.token)
        n_drafts = {slice_.slot: slice_.n_drafts for slice_ in step.slices if slice_.slot in drawn}
        for slot, tokens in drawn.items():
            sequence = running[slot]
            sequence.account.won(len(tokens) - 1)
            for proposal in self._proposals[slot]:
                proposal.acceptance.saw(proposal.draft, tokens)
            sequence.n_drafted += n_drafts[slot]
            sequence.n_accepted += len(tokens) - 1
        return sum(n_drafts.values()), len(sampled) - len(drawn)
