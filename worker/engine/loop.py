"""One step after the other: admit, choose, run, sample, tell. A reader who finds `Engine.step` has found the program.

Runs on the step thread; pure (the runner and the way out are passed in). Every job it accepts leaves exactly once, as
Finished, Failed or cancelled.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq

from worker.engine.backend import Aborted, BadBatch, Constraint, NoRoom, Runner, Sampled, Step
from worker.engine.contract import (
    Delta,
    Failed,
    FailureCode,
    Finished,
    JobKey,
    Outbound,
    Sampling,
    SlotId,
    StepBegun,
    StepDone,
    StopReason,
    TokenId,
)
from worker.engine.scheduler import Scheduler
from worker.engine.sequence import Sequence, State
from worker.engine.text import TextStream


class Engine:
    """Continuous batching over one runner.

    `context_length` is what one job may use (≤ n_cells); `emit` takes frames in order and never blocks;
    `clock` gives the monotonic seconds that frames carry.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        n_slots: int,
        n_cells: int,
        context_length: int,
        chunk: int,
        emit: Callable[[Outbound], None],
        clock: Callable[[], float],
    ) -> None:
        self._runner = runner
        self._context_length = context_length
        self._emit = emit
        self._clock = clock
        self.scheduler = Scheduler(n_slots=n_slots, n_cells=n_cells, chunk=chunk)
        self.step_jobs: frozenset[JobKey] = frozenset()
        """Jobs of the step that runs now; read by the intake thread to decide whether to abort it."""
        self._announced: tuple[JobKey, ...] = ()
        self._deltas: list[Delta] = []
        self._finished: list[Finished] = []
        self._failed: list[Failed] = []

    @property
    def is_idle(self) -> bool:
        return self.scheduler.is_idle

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
        room = self._context_length - len(prompt)
        text = TextStream(stop)
        self.scheduler.add(
            Sequence(job, prompt, min(max_tokens, room), sampling, text, constraint, is_cut=max_tokens > room)
        )

    def cancel(self, job: JobKey) -> None:
        """Forget a job; its slot and cells are free before the next step. Unknown jobs are ignored."""
        sequence = self.scheduler.find(job)
        if sequence is not None:
            self._release(sequence)
            # There may be no next step to report the cells by.
            self._emit(StepDone(cells_used=self.scheduler.n_cells_used, sampled_at_s=self._clock()))

    def step(self) -> None:
        """Admit, run one step, and emit what came of it. Does nothing when there is nothing to do."""
        admitted = self.scheduler.admit()
        if admitted:
            self._emit(
                StepDone(
                    started=tuple(sequence.job for sequence in admitted),
                    cells_used=self.scheduler.n_cells_used,
                    sampled_at_s=self._clock(),
                )
            )
        step = self.scheduler.next_step()
        if step is None:
            return
        self._announce(step)
        for sampled in self._run(step):
            self._apply(sampled)
        self.step_jobs = frozenset()
        self._emit(self._report(step))

    # ── running ──────────────────────────────────────────────────────────────────────────────────

    def _announce(self, step: Step) -> None:
        jobs = tuple(self.scheduler.running[piece.slot].job for piece in step.slices)
        self._runner.forget_abort()
        self.step_jobs = frozenset(jobs)
        if jobs != self._announced:
            self._announced = jobs
            self._emit(StepBegun(jobs=jobs))

    def _run(self, step: Step) -> list[Sampled]:
        """Run a step; what failed is failed, what was computed is counted."""
        try:
            sampled = self._runner.run(step)
        except BadBatch as error:
            return self._bisect(step, error)
        except NoRoom:
            # Reservation makes this impossible; if the library disagrees, the newest job yields to the others.
            self._fail(self._newest(step), "VRAM_OOM", "the KV cache has no room left for this job")
            return []
        except Aborted:
            for piece in step.slices:
                self._runner.trim(piece.slot, piece.start)
            return []
        for piece in step.slices:
            self._advance(self.scheduler.running[piece.slot], len(piece.tokens))
        return sampled

    def _bisect(self, step: Step, error: BadBatch) -> list[Sampled]:
        """Nothing of a bad batch was kept: run its halves, until the slice at fault stands alone and fails alone."""
        if len(step.slices) == 1:
            sequence = self.scheduler.running[step.slices[0].slot]
            self._fail(sequence, "INFERENCE_FAILED", f"the model refused this job's tokens: {error}")
            return []
        half = len(step.slices) // 2
        return self._run(Step(step.kind, step.slices[:half])) + self._run(Step(step.kind, step.slices[half:]))

    def _newest(self, step: Step) -> Sequence:
        in_step = {piece.slot for piece in step.slices}
        return [sequence for slot, sequence in self.scheduler.running.items() if slot in in_step][-1]

    @staticmethod
    def _advance(sequence: Sequence, n_tokens: int) -> None:
        sequence.n_computed += n_tokens
        if sequence.state is State.PREFILL and sequence.n_computed == len(sequence.prompt):
            sequence.move(State.DECODE)

    # ── what a sampled token means ───────────────────────────────────────────────────────────────

    def _apply(self, sampled: Sampled) -> None:
        sequence = self.scheduler.running[sampled.slot]
        if sampled.error is not None:
            self._fail(sequence, "INFERENCE_FAILED", sampled.error)
            return
        sequence.generated.append(sampled.token)
        is_stop_token = sampled.token in sequence.sampling.stop_token_ids
        text = "" if sampled.is_end or is_stop_token else sequence.text.push(sampled.piece)
        reason = self._stop_reason(sequence, is_end=sampled.is_end, is_stop_token=is_stop_token)
        if reason is not None:
            text += sequence.text.flush()
        elif sequence.constraint is not None:
            sequence.constraint.accept(sampled.token)
        self._deltas.append(Delta(sequence.job, text, sampled.logprob))
        if reason is not None:
            self._finish(sequence, reason)

    @staticmethod
    def _stop_reason(sequence: Sequence, *, is_end: bool, is_stop_token: bool) -> StopReason | None:
        """A stop completed by the last allowed token is a stop."""
        if is_end:
            return "EOS"
        if is_stop_token or sequence.text.matched is not None:
            return "STOP_SEQUENCE"
        return "MAX_TOKENS" if sequence.is_out_of_tokens else None

    def _finish(self, sequence: Sequence, reason: StopReason) -> None:
        is_full = reason == "MAX_TOKENS" and sequence.is_cut
        self._finished.append(Finished(sequence.job, reason, sequence.text.matched, is_full))
        self._release(sequence)

    def _fail(self, sequence: Sequence, code: FailureCode, message: str) -> None:
        self._failed.append(Failed(sequence.job, code, message))
        self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        slot: SlotId | None = sequence.slot
        self.scheduler.remove(sequence)
        if sequence.constraint is not None:
            sequence.constraint.close()
        if slot is not None:
            self._runner.trim(slot, 0)

    # ── frames ───────────────────────────────────────────────────────────────────────────────────

    def _report(self, step: Step) -> StepDone:
        report = StepDone(
            kind=step.kind,
            deltas=tuple(self._deltas),
            finished=tuple(self._finished),
            failed=tuple(self._failed),
            cells_used=self.scheduler.n_cells_used,
            sampled_at_s=self._clock(),
        )
        self._deltas.clear()
        self._finished.clear()
        self._failed.clear()
        return report
