"""The engine runs one step after the other: it admits, chooses, runs, applies and reports. `Engine.step` is the
program.

This runs on the step thread and is pure: the runner and the way out are passed in. Every accepted job leaves exactly
once: finished, failed or cancelled.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby

from worker.engine.backend import Found, KvMismatch, LoadedDraft, Runner
from worker.engine.channels import CONTENT, NO_CONTROL_TOKENS, ChannelText, ControlTokens
from worker.engine.config import EngineConfig
from worker.engine.drafting.drafts import N_READ, Drafts
from worker.engine.kv_blocks import BlockJournal
from worker.engine.salt import salted
from worker.engine.scheduler import Scheduler
from worker.engine.sequence import Queued, Sequence, State
from worker.engine.state_cache import prefix_cache_of
from worker.engine.step import Aborted, BadBatch, NoRoom, Sampled, Step, Token
from worker.limits import MAX_DRAFTS
from worker.wire.blocks import BlocksChanged
from worker.wire.jobs import (
    Delta,
    Failed,
    FailureCode,
    Finished,
    JobKey,
    Logprob,
    PromptLogprobs,
    SlotId,
    Started,
    StepBegun,
    StepDone,
    StepKind,
    StopReason,
    TokenId,
)
from worker.wire.load import PrefixCacheFound
from worker.wire.messages import Outbound

MAX_HEADROOM = 512
"""The largest number of cells that are kept free for the next step. A step that needs more gets them when it is chosen.
"""

MAX_REPORTED = 4096
"""The largest number of log-probabilities of cached prompts in one report, those of the most probable tokens included.
Each takes a microsecond or two here, while other jobs wait for their next token, and as much to read; all of them are
some 100 KB."""


def _keep_quiet(_warning: str) -> None:
    pass


class Engine:
    """Continuous batching over one runner, configured by `config`.

    `emit` takes frames in order and never blocks. `clock` gives the monotonic seconds that frames carry. `warn` gets
    failures that end no job. `while_running` is entered while a step runs; nothing here changes then.
    """

    def __init__(
        self,
        runner: Runner,
        config: EngineConfig,
        *,
        emit: Callable[[Outbound], None],
        clock: Callable[[], float],
        draft: LoadedDraft | None = None,
        marks: ControlTokens = NO_CONTROL_TOKENS,
        warn: Callable[[str], None] = _keep_quiet,
        while_running: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._runner = runner
        self._while_running = while_running
        self._itl_target_s = config.itl_target_s
        self._context_length = config.context_length
        self._n_headroom = min(max(config.chunk, config.widest_step), MAX_HEADROOM) + MAX_DRAFTS
        """The number of cells that are kept free for the next step."""
        self._emit = emit
        self._clock = clock
        self._marks = marks
        self._n_unpromised_cells = runner.kv.n_free_cells - config.n_cells
        """Cells that the library has added because it rounds a context up; no job may use them."""
        self._journal = BlockJournal() if config.reports_blocks else None
        self.prefix_cache = prefix_cache_of(runner.kv, config, self._journal)
        self.scheduler = Scheduler(
            n_slots=config.n_slots,
            n_cells=config.n_cells,
            budget=config.prefill_budget(can_abort=runner.can_abort),
            policy=config.policy(can_keep=self.prefix_cache.is_keeping),
        )
        self._drafts = Drafts(config, runner.kv, clock=clock, draft=draft, warn=warn)
        self.step_jobs: frozenset[JobKey] = frozenset()
        """The jobs of the current step; the intake thread reads them to decide whether to abort it."""
        self._run_now: tuple[Step, float] | None = None
        """The current prefill step, if it may be stopped for a new job, and when it should end."""
        self._announced: tuple[JobKey, ...] = ()
        self._step_report = StepDone()
        """The next frame, in which what happens until then is collected."""
        self._unsent: list[Outbound] = []
        """Frames that wait until a device computes the next step; on a CPU no frame waits."""
        self._shape: tuple[StepKind, int] = ("prefill", 0)
        """The kind of the last step and the number of its tokens."""

    @property
    def is_idle(self) -> bool:
        return self.scheduler.is_idle

    @property
    def n_cells_used(self) -> int:
        """The cells that running jobs hold. Retained cells do not count, because any job may take them."""
        return self.scheduler.n_cells - self._n_spare_cells if self.scheduler.running else 0

    @property
    def _n_free_cells(self) -> int:
        return self._runner.kv.n_free_cells - self._n_unpromised_cells

    @property
    def _n_spare_cells(self) -> int:
        """The cells that no job holds."""
        return self._n_free_cells + self.prefix_cache.n_dead_cells

    def submit(self, queued: Queued) -> None:
        """Queue a job whose prompt fits. Its max_tokens is cut to the room left."""
        submit, prompt, constraint = queued.submit, queued.prompt, queued.constraint
        room = self._context_length - len(prompt)
        place = self._marks.place_after(prompt) if submit.marks == "split" else CONTENT
        sequence = Sequence(
            submit.job,
            salted(prompt, submit.salt),
            min(submit.sampling.max_tokens, room),
            submit.sampling,
            ChannelText(
                *(submit.sampling.stop, self._marks, submit.marks, place),
                reads_calls=submit.tools is not None,
                stops_anywhere=submit.stops_anywhere,
            ),
            constraint=constraint,
            is_cut=submit.sampling.max_tokens > room,
            n_top=submit.prompt_logprobs,
            watches_names=submit.tools is not None and not submit.tools.is_required,
        )
        if constraint is not None:
            constraint.begin(place)
        self._drafts.begin(sequence, queued.prediction)
        self.scheduler.add(sequence)

    def is_in_the_way(self, prompt: list[TokenId]) -> bool:
        """Return True if the current step should be stopped for a new job with this prompt: its prompt would be read
        first, and it would wait for longer than the target. Any thread may ask, but only while a step runs.
        """
        if self._run_now is None:
            return False
        step, ends_s = self._run_now
        # A step that is long overdue may take as long again.
        if abs(ends_s - self._clock()) <= self._itl_target_s:
            return False
        n_tokens = self.prefix_cache.n_missing(prompt, self.scheduler.running.values())
        return n_tokens is not None and self.scheduler.is_first(n_tokens, self._n_spare_cells, step)

    def cancel(self, job: JobKey) -> None:
        """Drop a job; its slot and cells are free before the next step. Unknown jobs are ignored."""
        sequence = self.scheduler.find(job)
        if sequence is not None:
            self._leave(sequence)
            self._take_checkpoints()
            # There may be no next step to report the cells by.
            self._report_changes()

    def back_up(self) -> bool:
        """Copy out one retained slot, so that its cells outlive this process; they stay in the slot, too. Return False
        if all slots are copied.
        """
        is_copied = self.prefix_cache.back_up()
        if is_copied:
            self._report_changes()
        return is_copied

    def restore(self, found: Found) -> None:
        """Take over the cells that earlier engines have saved."""
        index = self.prefix_cache.index
        n_tokens, n_bytes = index.n_tokens, index.n_bytes
        n_parts = sum(self.prefix_cache.restore(tokens, saved) for tokens, saved in found.parts)
        n_parts += sum(self.prefix_cache.restore_checkpoint(*each) for each in found.checkpoints)
        self._send(
            PrefixCacheFound(
                n_parts=n_parts,
                n_tokens=max(0, index.n_tokens - n_tokens),
                n_bytes=max(0, index.n_bytes - n_bytes),
                n_dropped=found.n_dropped,
                dropped_because=found.dropped_because,
            )
        )
        self._report_changes()

    def step(self) -> None:
        """Admit, choose, run, apply and report; if nothing is left to do, check the counts of the KV memory.

        The results of a step are sent before the next one runs. If a device computes decode steps of one shape, it gets
        the next step within a tenth of a millisecond, and the results are sent after that.
        """
        self._admit()
        step = self._choose()
        if step is not None:
            self._take_step(step)
        self._report_blocks()
        if step is None or self.is_idle:
            self._send_all()
        if self.is_idle:
            self._check_memory()

    def _take_step(self, step: Step) -> None:
        self._apply(step, self._run(step))
        self._report(step.kind)
        if step.kind == "prefill" or self.prefix_cache.is_owing:
            self._take_checkpoints()
        self._tidy()
        if self.is_idle or not self._runner.is_asynchronous:
            self._drafts.learn(is_idle=self.is_idle)

    def _take_checkpoints(self) -> None:
        """Take them after the report, because a copy takes milliseconds, and before others settle."""
        self._send_all()
        if self.prefix_cache.take_checkpoints(self.scheduler.running.values()):
            self._report(None)
            self._report_blocks()

    def tidy(self) -> bool:
        """Put away a part of the cells that finished jobs have left in the KV memory, while nothing runs.

        Return False if there are none, or if they have to wait.
        """
        is_changed = self._tidy()
        self._send_all()
        return is_changed

    def _tidy(self) -> bool:
        """Tidy up after the report, because a copy takes milliseconds."""
        is_changed = self.prefix_cache.tidy(self.scheduler.running.values(), self._n_headroom)
        if is_changed:
            self._report(None)
            self._report_blocks()
        return is_changed

    def _report_blocks(self) -> None:
        if self._journal is not None:
            changes = self._journal.take(self.prefix_cache.in_memory(self.scheduler.running.values()))
            if changes:
                self._send(BlocksChanged(changes=changes))

    def _check_memory(self) -> None:
        """Compare all counts of the KV memory after the last job has left and its end was reported.

        Only retained slots may hold tokens now. Raises: KvMismatch, with both numbers.
        """
        for slot, n_tokens in enumerate(self._runner.kv.count_tokens()):
            n_known = self.prefix_cache.n_retained(SlotId(slot))
            if n_tokens != n_known:
                raise KvMismatch(
                    f"slot {slot} holds {n_tokens} tokens while nothing runs; the engine knows of {n_known}"
                )
        n_used, lengths = (
            self.scheduler.n_cells - self._n_free_cells,
            [len(each) for each in self.prefix_cache.retained],
        )
        # Retained sequences may share prefixes.
        if not max(lengths, default=0) <= n_used <= sum(lengths):
            raise KvMismatch(f"{n_used} cells are in use while nothing runs; the engine knows of {sum(lengths)}")

    # ── admit ────────────────────────────────────────────────────────────────────────────────────

    def _admit(self) -> None:
        """Give slots to the next sequences, and to each of them the cached cells of its prefix."""
        running = self.scheduler.running.values()
        if self.scheduler.waiting:
            self._give_slots()
        begun = []
        for sequence in running:
            if sequence.state is State.FOLLOW and self.prefix_cache.settle(sequence, running) and not sequence.is_begun:
                sequence.is_begun = True
                self._step_report.started.append(Started(sequence.job, min(sequence.n_computed, len(sequence.prompt))))
                begun.append(sequence)
        for sequence in begun:
            if sequence.max_tokens:
                self._go_on(sequence, ())
        self._report_found()
        if self._step_report.started or self._step_report.prompt_logprobs:
            self._report(None)
        if self.prefix_cache.is_owing:
            self._take_checkpoints()

    def _give_slots(self) -> None:
        """Admit the head of the queue for as long as there is room, or running sequences can be preempted for it."""
        running = self.scheduler.running.values()

        def n_shared(sequence: Sequence) -> int:
            return self.prefix_cache.n_shared(sequence, running)

        self.scheduler.admit(self._n_spare_cells, n_shared)
        while preempted := self.scheduler.choose_preemptions(self._n_spare_cells, n_shared):
            for sequence in preempted:
                self._pause(sequence)
                self._step_report.n_preempted += sequence.is_begun
            self.scheduler.admit(self._n_spare_cells, n_shared)

    def _report_found(self) -> None:
        """Report log-probabilities that sequences have found with cached prefixes, at most MAX_REPORTED in a step."""
        n_left = MAX_REPORTED
        for sequence in self.scheduler.running.values():
            if sequence.state is State.REPORT:
                n_left -= self._report_logprobs(sequence, n_left)
                if not sequence.has_unreported:
                    sequence.move(State.PREFILL)

    def _report_logprobs(self, sequence: Sequence, n_most: int = MAX_REPORTED) -> int:
        """Report the next log-probabilities of a sequence's prompt, at most `n_most` of them, those of the most
        probable tokens included. Return how many were reported.
        """
        assert sequence.n_top is not None
        n_each = 1 + sequence.n_top
        start, end = sequence.n_reported, min(sequence.n_reported + n_most // n_each, sequence.n_reportable)
        if start >= end:
            return 0
        logprobs = tuple(self._runner.logprob(score, sequence.n_top) for score in sequence.scores[start:end])
        self._step_report.prompt_logprobs.append(PromptLogprobs(sequence.job, start, logprobs))
        sequence.n_reported = end
        return n_each * len(logprobs)

    # ── choose ───────────────────────────────────────────────────────────────────────────────────

    def _choose(self) -> Step | None:
        """Return the next step, with drafts if they pay. Sequences are paused until it has room."""
        while (step := self.scheduler.next_step()) is not None and step.n_tokens > self._n_free_cells:
            if self.prefix_cache.give_up(self.scheduler.running.values()):
                continue
            victim = self.scheduler.victim()
            if victim is None:
                break
            self._pause_victim(victim)
        if step is None:
            return None
        self.scheduler.begin(step)
        return self._drafts.added_to(step, self.scheduler.running, self._n_free_cells)

    def _pause_victim(self, sequence: Sequence) -> None:
        """Pause a sequence because the cells have run out."""
        self._pause(sequence)
        self._step_report.n_victims += sequence.is_begun

    def _pause(self, sequence: Sequence) -> None:
        """Pause a sequence and its stream. Its computed cells are kept, so that it can continue cheaply."""
        assert sequence.slot is not None
        self.prefix_cache.keep(sequence, self.scheduler.running.values())
        self._runner.kv.trim(sequence.slot, 0)
        self.scheduler.pause(sequence)

    # ── run ──────────────────────────────────────────────────────────────────────────────────────

    def _run(self, step: Step) -> list[Sampled]:
        """Run a step. While it runs the front knows its jobs, and the intake thread may abort it."""
        jobs = tuple(self.scheduler.running[slice_.slot].job for slice_ in step.slices)
        self._runner.forget_abort()
        self.step_jobs = frozenset(jobs)
        announced = self._announced
        if jobs != announced:
            self._announced = jobs
            self._send(StepBegun(jobs=jobs))
        before, self._shape = self._shape, (step.kind, step.n_tokens)
        if before != self._shape or jobs != announced:
            # The front must know which jobs to blame before anything can happen; and a device takes long to prepare
            # another graph.
            self._send_all()
        sampled = self._attempt(step)
        self.step_jobs = frozenset()
        return sampled

    def _attempt(self, step: Step) -> list[Sampled]:
        """Run a step and return its draws. Jobs that cannot go on are paused or fail; an aborted step drew nothing."""
        began_s = self._clock()
        may_lose = self.scheduler.may_lose(step)
        expected_s = self.scheduler.expected_s(step) if may_lose else 0.0
        self._run_now = (step, began_s + expected_s) if may_lose else None
        try:
            with self._while_running():
                sampled = self._runner.run(step, self._catch_up)
        except BadBatch as error:
            return self._bisect(step, error)
        except NoRoom:
            self._yield_to_others()
            return []
        except Aborted:
            for slice_ in step.slices:
                self._runner.kv.trim(slice_.slot, slice_.start)
            if may_lose:
                self.scheduler.lose(step, min(1.0, (self._clock() - began_s) / max(expected_s, 1e-6)))
            return []
        finally:
            self._run_now = None
            self._send_all()
        seconds = self._clock() - began_s
        n_drafted, n_accepted = self._drafts.judge(step, sampled, self.scheduler.running, seconds)
        self._step_report.n_drafted += n_drafted
        self._step_report.n_accepted += n_accepted
        self.scheduler.complete(step, seconds)
        return sampled

    def _bisect(self, step: Step, error: BadBatch) -> list[Sampled]:
        """Run the halves of a bad batch, of which nothing was kept, until the slice at fault is alone and fails."""
        if len(step.slices) == 1:
            sequence = self.scheduler.running[step.slices[0].slot]
            self._fail(sequence, "INFERENCE_FAILED", f"the model refused this job's tokens: {error}")
            return []
        half = len(step.slices) // 2
        sampled = self._attempt(Step(step.kind, step.slices[:half]))
        # A job may have been paused for either half; it has no turn in this step then.
        rest = tuple(slice_ for slice_ in step.slices[half:] if slice_.slot in self.scheduler.running)
        sampled += self._attempt(Step(step.kind, rest)) if rest else []
        return [each for each in sampled if each.slot in self.scheduler.running]

    def _yield_to_others(self) -> None:
        """Pause a job, or fail one that is alone, because the library found less room than the engine had counted."""
        victim = self.scheduler.victim()
        if victim is not None:
            self._pause_victim(victim)
            while self.prefix_cache.give_up(self.scheduler.running.values()):
                pass
            return
        (alone,) = self.scheduler.running.values()
        self._fail(alone, "VRAM_OOM", "the KV cache has no room left for this job")

    # ── apply ────────────────────────────────────────────────────────────────────────────────────

    def _apply(self, step: Step, sampled: list[Sampled]) -> None:
        """Apply draws, which come in the order of the slices; a slice whose drafts were right has several."""
        running = self.scheduler.running
        if step.kind == "prefill":
            self._report_scored(step)
        for slot, draws in groupby(sampled, key=lambda each: each.slot):
            self._take(running[slot], draws)
        for slice_ in step.slices:
            if slice_.n_drafts and slice_.slot in running:
                self._runner.kv.trim(slice_.slot, running[slice_.slot].n_computed)
        if step.kind == "prefill":
            self._finish_without_tokens(step)

    def _report_scored(self, step: Step) -> None:
        for slice_ in step.slices:
            if slice_.scoring is not None and slice_.slot in self.scheduler.running:
                self._report_logprobs(self.scheduler.running[slice_.slot])

    def _finish_without_tokens(self, step: Step) -> None:
        """End the jobs that generate nothing and whose prompt is computed now."""
        for slice_ in step.slices:
            sequence = self.scheduler.running.get(slice_.slot)
            if sequence is not None and sequence.state is State.DECODE and sequence.is_out_of_tokens:
                self._finish(sequence, "MAX_TOKENS")

    def _take(self, sequence: Sequence, draws: Iterable[Sampled]) -> None:
        """Append the tokens that one slice drew. The job may end at any of them; later ones do not count."""
        for i, drawn in enumerate(draws):
            # The token before was a draft, so its cell is computed.
            sequence.n_computed += i > 0
            token = Token(drawn.token, drawn.piece)
            if drawn.error is not None:
                self._fail(sequence, "INFERENCE_FAILED", drawn.error)
            elif drawn.is_end or sequence.constraint is None:
                self._append(sequence, token, drawn.logprob, is_end=drawn.is_end)
            else:
                self._go_on(sequence, [token], drawn.logprob)
            if sequence.state is State.DONE:
                return

    def _go_on(self, sequence: Sequence, drawn: Seq[Token], logprob: Logprob | None = None) -> None:
        """Append drawn tokens and the tokens that the sequence's constraint forces after them, until the job ends."""
        tokens = sequence.followed(drawn)
        for n_left, each in zip(reversed(range(len(tokens))), tokens, strict=True):
            self._append(sequence, each, logprob, is_over=n_left == 0 and sequence.is_over)
            logprob = None
            if sequence.state is State.DONE:
                return

    def _append(
        self, sequence: Sequence, each: Token, logprob: Logprob | None, *, is_end: bool = False, is_over: bool = False
    ) -> None:
        sequence.append(each.id)
        is_stop_token = each.id in sequence.sampling.stop_token_ids
        text = "" if is_end or is_stop_token else sequence.text.push(each.id, each.piece)
        reason = sequence.stop_reason(is_end=is_end, is_stop_token=is_stop_token, is_over=is_over)
        if reason is not None:
            text += sequence.text.flush()
            reason = reason if sequence.text.matched is None else "STOP_SEQUENCE"
        sequence.unreported.append(
            Delta(sequence.job, text, logprob if sequence.text.is_answer else None, sequence.text.is_reasoning)
        )
        if reason is not None or sequence.state is State.DECODE:
            self._step_report.deltas += sequence.unreported
            sequence.unreported.clear()
        if reason is not None:
            self._finish(sequence, reason)

    def _finish(self, sequence: Sequence, reason: StopReason) -> None:
        is_full = reason == "MAX_TOKENS" and sequence.is_cut
        self._step_report.finished.append(
            Finished(
                sequence.job,
                reason,
                sequence.text.matched,
                is_full,
                sequence.n_drafted,
                sequence.n_accepted,
                sequence.text.n_reasoning,
            )
        )
        self._leave(sequence)

    def _fail(self, sequence: Sequence, code: FailureCode, message: str) -> None:
        self._step_report.failed.append(Failed(sequence.job, code, message))
        self._release(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """End a sequence and keep its computed cells for later prompts."""
        is_owing = self.prefix_cache.leave(sequence, self.scheduler.running.values())
        self._drafts.remember(sequence)
        self._release(sequence, is_empty=not is_owing)

    def _release(self, sequence: Sequence, *, is_empty: bool = True) -> None:
        slot = sequence.slot
        self.scheduler.remove(sequence)
        if sequence.constraint is not None:
            sequence.constraint.close()
        if slot is not None and is_empty:
            self._runner.kv.trim(slot, 0)

    # ── report ───────────────────────────────────────────────────────────────────────────────────

    def _send(self, frame: Outbound) -> None:
        """Send a frame at once. If a device computes, send it after the device has the next step, so that it never
        waits."""
        self._unsent.append(frame)
        if not self._runner.is_asynchronous:
            self._send_all()

    def _send_all(self) -> None:
        while self._unsent:
            self._emit(self._unsent.pop(0))

    def _catch_up(self) -> None:
        """Do the work that was put off until a device computes the next step."""
        self._send_all()
        self._drafts.learn(is_idle=False)
        kind, n_tokens = self._shape
        self._drafts.catch_up(self.scheduler.running, N_READ + (2 * n_tokens if kind == "prefill" else 0))

    def _report_changes(self) -> None:
        """Report at once what has changed between steps."""
        self._report(None)
        self._report_blocks()
        self._send_all()

    def _report(self, kind: StepKind | None) -> None:
        """Send the front, in one frame, all that has happened since the last one. `kind`: that of the step that ran."""
        report, self._step_report = self._step_report, StepDone()
        report.kind = kind
        report.n_threads = self._runner.n_threads
        report.cells_used = self.n_cells_used
        report.prefix_tokens = self.prefix_cache.index.n_tokens
        report.prefix_bytes = self.prefix_cache.index.n_bytes
        report.n_paused = sum(sequence.is_begun for sequence in self.scheduler.waiting)
        report.sampled_at_s = self._clock()
        self._send(report)
