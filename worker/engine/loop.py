"""One step after the other: admit, choose, run, sample, tell. A reader who finds `Engine.step` has found the program.

Runs on the step thread; pure (the runner and the way out are passed in). Every job it accepts leaves exactly once, as
Finished, Failed or cancelled.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from itertools import groupby

from worker.engine.backend import Aborted, BadBatch, Constraint, Forced, KvMismatch, NoRoom, Runner, Sampled, Step
from worker.engine.drafts import Drafts
from worker.engine.prefix_cache import PrefixCache
from worker.engine.rules import Rules
from worker.engine.scheduler import Scheduler
from worker.engine.sequence import Sequence, State
from worker.engine.step_report import StepReport
from worker.engine.text import TextStream
from worker.wire.messages import (
    Delta,
    Failed,
    FailureCode,
    Finished,
    JobKey,
    Logprob,
    Outbound,
    Sampling,
    Started,
    StepBegun,
    StepDone,
    StepKind,
    StopReason,
    TokenId,
)


class Engine:
    """Continuous batching over one runner, by `rules`.

    `emit` takes frames in order and never blocks; `clock` gives the monotonic seconds that frames carry.
    """

    def __init__(
        self, runner: Runner, rules: Rules, *, emit: Callable[[Outbound], None], clock: Callable[[], float]
    ) -> None:
        self._runner = runner
        self._rules = rules
        self._emit = emit
        self._clock = clock
        self._n_unpromised_cells = runner.kv.n_free_cells - rules.n_cells
        """The library rounds a context up."""
        self._prefill_budget = rules.prefill_budget()
        self.scheduler = Scheduler(n_slots=rules.n_slots, n_cells=rules.n_cells, budget=self._prefill_budget)
        self.prefix_cache = PrefixCache(
            runner.kv,
            limit_bytes=rules.prefix_cache_bytes,
            grain=rules.chunk if rules.is_deterministic else 1,
            worthwhile=rules.chunk,
            retained_slot=rules.retained_slot,
        )
        self._drafts = Drafts(rules.row_costs)
        self.step_jobs: frozenset[JobKey] = frozenset()
        """Jobs of the step that runs now; read by the intake thread to decide whether to abort it."""
        self._announced: tuple[JobKey, ...] = ()
        self._step_report = StepReport()

    @property
    def is_idle(self) -> bool:
        return self.scheduler.is_idle

    @property
    def n_cells_used(self) -> int:
        """What lingers is in nobody's way."""
        return self.scheduler.n_cells - self._n_free_cells if self.scheduler.running else 0

    @property
    def _n_free_cells(self) -> int:
        return self._runner.kv.n_free_cells - self._n_unpromised_cells

    def submit(
        self,
        job: JobKey,
        prompt: list[TokenId],
        max_tokens: int,
        sampling: Sampling,
        stop: Seq[str] = (),
        *,
        constraint: Constraint | None = None,
    ) -> None:
        """Queue a job whose prompt fits: 1 ≤ len(prompt) < context_length. max_tokens is cut to the room left.

        The constraint is ours from here on.
        """
        room = self._rules.context_length - len(prompt)
        text = TextStream(stop)
        self.scheduler.add(
            Sequence(job, prompt, min(max_tokens, room), sampling, text, constraint, is_cut=max_tokens > room)
        )

    def cancel(self, job: JobKey) -> None:
        """Forget a job; its slot and cells are free before the next step. Unknown jobs are ignored."""
        sequence = self.scheduler.find(job)
        if sequence is not None:
            self._leave(sequence)
            # There may be no next step to report the cells by.
            self._emit(self._report(None))

    def put_away(self) -> None:
        """Empty the runner's memory while nothing runs."""
        assert self.is_idle
        if self.prefix_cache.put_away():
            self._emit(self._report(None))

    def step(self) -> None:
        """Admit, run one step, and emit what came of it; with nothing to do, look at what is left in the memory."""
        self._admit()
        step = self._next_step()
        if step is not None:
            self._take_step(step)
        if self.is_idle:
            self._check_memory()

    def _take_step(self, step: Step) -> None:
        self.scheduler.runs(step)
        self._announce(step)
        self._apply(step, self._run(step))
        self.step_jobs = frozenset()
        self._emit(self._report(step.kind))
        # Only now: a copy takes milliseconds, and a first token may have waited for them.
        if self.scheduler.running and self.prefix_cache.put_away(self.scheduler.running.values()):
            self._emit(self._report(None))

    def _check_memory(self) -> None:
        """Compare all counts of what is in the memory, now that the last job has left and its end was told.

        No slot holds a token but the one that retains the last job's. Raises: KvMismatch, with both numbers.
        """
        n_retained = len(self.prefix_cache.retained)
        for slot, n_tokens in enumerate(self._runner.kv.count_tokens()):
            n_known = n_retained if slot == self._rules.retained_slot else 0
            if n_tokens != n_known:
                raise KvMismatch(
                    f"slot {slot} holds {n_tokens} tokens while nothing runs; the engine knows of {n_known}"
                )
        n_used = self.scheduler.n_cells - self._n_free_cells
        if n_used != n_retained:
            raise KvMismatch(f"{n_used} cells are in use while nothing runs; the engine knows of {n_retained}")

    # ── before a step ────────────────────────────────────────────────────────────────────────────

    def _admit(self) -> None:
        """Slots for the queue's head, and their beginnings for those that have one."""
        running = self.scheduler.running.values()
        if self.scheduler.waiting:
            self.scheduler.admit(self._n_free_cells, lambda sequence: self.prefix_cache.n_shared(sequence, running))
        begun = []
        for sequence in running:
            if sequence.state is State.FOLLOW and self.prefix_cache.settle(sequence, running) and not sequence.is_begun:
                sequence.is_begun = True
                self._step_report.started.append(Started(sequence.job, min(sequence.n_computed, len(sequence.prompt))))
                begun.append(sequence)
        for sequence in begun:
            self._go_on(sequence, ())
        if self._step_report.started:
            self._emit(self._report(None))

    def _next_step(self) -> Step | None:
        """A step that has room; sequences are paused for it, the newest first."""
        while (step := self.scheduler.next_step()) is not None and step.n_tokens > self._n_free_cells:
            if self.prefix_cache.put_away(self.scheduler.running.values()):
                continue
            newest = self.scheduler.newest()
            if newest is None:
                break
            self._preempt(newest)
        return step if step is None else self._drafts.added_to(step, self.scheduler.running, self._n_free_cells)

    def _preempt(self, sequence: Sequence) -> None:
        """What it computed is kept, so that going on costs little; its stream pauses."""
        assert sequence.slot is not None
        self.prefix_cache.keep(sequence)
        self._runner.kv.trim(sequence.slot, 0)
        self.scheduler.preempt(sequence)
        self._step_report.n_preempted += sequence.is_begun

    def _announce(self, step: Step) -> None:
        jobs = tuple(self.scheduler.running[piece.slot].job for piece in step.slices)
        self._runner.forget_abort()
        self.step_jobs = frozenset(jobs)
        if jobs != self._announced:
            self._announced = jobs
            self._emit(StepBegun(jobs=jobs))

    # ── running ──────────────────────────────────────────────────────────────────────────────────

    def _run(self, step: Step) -> list[Sampled]:
        """Run a step; what failed is failed, what was computed is counted, and what that took shapes later steps."""
        is_holding_up = step.kind == "prefill" and self.scheduler.is_generating
        began_s = self._clock()
        try:
            sampled = self._runner.run(step)
        except BadBatch as error:
            return self._bisect(step, error)
        except NoRoom:
            self._yield_to_others()
            return []
        except Aborted:
            for piece in step.slices:
                self._runner.kv.trim(piece.slot, piece.start)
            return []
        seconds = self._clock() - began_s
        if is_holding_up:
            self._prefill_budget.prefill_took(step.n_tokens, seconds)
        if step.kind == "decode":
            self._prefill_budget.decode_took(seconds)
            self._drafts.judge(step, sampled, self.scheduler.running, seconds, self._step_report)
        for piece in step.slices:
            self._advance(self.scheduler.running[piece.slot], len(piece.tokens) - piece.n_drafts)
        return sampled

    def _bisect(self, step: Step, error: BadBatch) -> list[Sampled]:
        """Nothing of a bad batch was kept: run its halves, until the slice at fault stands alone and fails alone."""
        if len(step.slices) == 1:
            sequence = self.scheduler.running[step.slices[0].slot]
            self._fail(sequence, "INFERENCE_FAILED", f"the model refused this job's tokens: {error}")
            return []
        half = len(step.slices) // 2
        sampled = self._run(Step(step.kind, step.slices[:half]))
        # A job may have been paused for the first half, or is for the second: then it has no turn in this step.
        rest = tuple(piece for piece in step.slices[half:] if piece.slot in self.scheduler.running)
        sampled += self._run(Step(step.kind, rest)) if rest else []
        return [each for each in sampled if each.slot in self.scheduler.running]

    def _yield_to_others(self) -> None:
        """The library found no room where we counted some: the newest job is paused; one that is alone has failed."""
        newest = self.scheduler.newest()
        if newest is not None:
            self._preempt(newest)
            return
        (alone,) = self.scheduler.running.values()
        self._fail(alone, "VRAM_OOM", "the KV cache has no room left for this job")

    @staticmethod
    def _advance(sequence: Sequence, n_tokens: int) -> None:
        sequence.n_computed += n_tokens
        if sequence.state is State.PREFILL and sequence.n_to_compute == 0:
            sequence.move(State.DECODE)

    # ── what a sampled token means ───────────────────────────────────────────────────────────────

    def _apply(self, step: Step, sampled: list[Sampled]) -> None:
        """Draws are in the order of the slices, several of one where guesses were right."""
        running = self.scheduler.running
        if not any(piece.n_drafts for piece in step.slices):
            for each in sampled:
                self._take(running[each.slot], each)
            return
        for slot, draws in groupby(sampled, key=lambda each: each.slot):
            self._take_all(running[slot], list(draws))
        for piece in step.slices:
            if piece.n_drafts and piece.slot in running:
                self._runner.kv.trim(piece.slot, running[piece.slot].n_computed)

    def _take_all(self, sequence: Sequence, draws: list[Sampled]) -> None:
        """A job may end at any of its tokens; those drawn after it never were."""
        for i, each in enumerate(draws):
            # The token before was guessed, so that its cell is there.
            sequence.n_computed += i > 0
            self._take(sequence, each)
            if sequence.state is State.DONE:
                return

    def _take(self, sequence: Sequence, sampled: Sampled) -> None:
        if sampled.error is not None:
            self._fail(sequence, "INFERENCE_FAILED", sampled.error)
            return
        drawn = [Forced(sampled.token, sampled.piece)]
        if sampled.is_end:
            self._append(sequence, drawn[0], sampled.logprob, is_end=True)
        else:
            self._go_on(sequence, drawn, sampled.logprob)

    def _go_on(self, sequence: Sequence, drawn: Seq[Forced], logprob: Logprob | None = None) -> None:
        """Append what was drawn and what the sequence's constraint forces behind it, until the job ends."""
        tokens = sequence.followed(drawn)
        for n_left, each in zip(reversed(range(len(tokens))), tokens, strict=True):
            self._append(sequence, each, logprob, is_over=n_left == 0 and sequence.is_over)
            if sequence.state is State.DONE:
                return

    def _append(
        self, sequence: Sequence, each: Forced, logprob: Logprob | None, *, is_end: bool = False, is_over: bool = False
    ) -> None:
        sequence.append(each.token)
        is_stop_token = each.token in sequence.sampling.stop_token_ids
        text = "" if is_end or is_stop_token else sequence.text.push(each.piece)
        reason = sequence.stop_reason(is_end=is_end, is_stop_token=is_stop_token, is_over=is_over)
        if reason is not None:
            text += sequence.text.flush()
        sequence.untold.append(Delta(sequence.job, text, logprob))
        if reason is not None or sequence.state is State.DECODE:
            self._step_report.deltas += sequence.untold
            sequence.untold.clear()
        if reason is not None:
            self._finish(sequence, reason)

    def _finish(self, sequence: Sequence, reason: StopReason) -> None:
        is_full = reason == "MAX_TOKENS" and sequence.is_cut
        self._step_report.finished.append(Finished(sequence.job, reason, sequence.text.matched, is_full))
        self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """What it computed is kept for others."""
        self.prefix_cache.keep(sequence, is_last=len(self.scheduler.running) == 1)
        self._release(sequence)

    def _fail(self, sequence: Sequence, code: FailureCode, message: str) -> None:
        self._step_report.failed.append(Failed(sequence.job, code, message))
        self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        slot = sequence.slot
        self.scheduler.remove(sequence)
        if sequence.constraint is not None:
            sequence.constraint.close()
        if slot is not None:
            self._runner.kv.trim(slot, 0)

    def _report(self, kind: StepKind | None) -> StepDone:
        return self._step_report.told(
            kind,
            cells_used=self.n_cells_used,
            prefix_tokens=self.prefix_cache.index.n_tokens,
            prefix_bytes=self.prefix_cache.index.n_bytes,
            at_s=self._clock(),
        )
