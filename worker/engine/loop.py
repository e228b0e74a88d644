"""The engine runs one step after the other: it admits, chooses, runs, applies and reports (`Engine.step`).

The runner and the way out are passed in. Every accepted job leaves exactly once: finished, failed or cancelled.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import groupby

from worker.engine.backend import Found, KvMismatch, LoadedDraft, Runner
from worker.engine.caches import prefix_cache_of
from worker.engine.channels import CONTENT, NO_CONTROL_TOKENS, ChannelText, ControlTokens
from worker.engine.config import EngineConfig
from worker.engine.drafting.drafts import N_READ, Drafts
from worker.engine.kv_blocks import BlockJournal
from worker.engine.reports import MAX_REPORTED, Reports
from worker.engine.scheduler import Scheduler
from worker.engine.sequence import Queued, Sequence, State
from worker.engine.step import Aborted, BadBatch, NoRoom, Sampled, Step, Token, salted
from worker.wire.jobs import Delta, Failed, FailureCode, JobKey, Logprob, SlotId, StepKind, StopReason, TokenId
from worker.wire.load import PrefixCacheFound
from worker.wire.messages import BlocksChanged, Outbound


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
        warn: Callable[[str], None] = lambda _: None,
        while_running: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._runner = runner
        self._while_running = while_running
        self._itl_target_s = config.itl_target_s
        self._context_length = config.context_length
        self._reports = Reports(emit, runner.logprob, is_overlapping=runner.is_asynchronous)
        self._clock = clock
        self._marks = marks
        self._n_unpromised_cells = runner.kv.n_free_cells - config.n_cells
        """The library has added them because it rounds a context up; no job may use them."""
        self._journal = BlockJournal() if config.reports_blocks else None
        self.prefix_cache = prefix_cache_of(runner.kv, config, self._journal)
        self.scheduler = Scheduler(config, can_abort=runner.can_abort, can_keep=self.prefix_cache.is_keeping)
        self._drafts = Drafts(config, runner.kv, clock=clock, draft=draft, warn=warn)
        self.step_jobs: frozenset[JobKey] = frozenset()
        """The jobs of the current step; the intake thread reads them to decide whether to abort it."""
        self._run_now: tuple[Step, float] | None = None
        """The current prefill step, if it may be stopped for a new job, and when it should end."""

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
        submit, prompt, sampling, tools = queued.submit, queued.prompt, queued.submit.sampling, queued.submit.tools
        room = self._context_length - len(prompt)
        place = self._marks.place_after(prompt) if submit.marks == "split" else CONTENT
        calls, anywhere = tools is not None, submit.stops_anywhere
        sequence = Sequence(
            submit.job,
            salted(prompt, submit.salt),
            min(sampling.max_tokens, room),
            sampling,
            ChannelText(sampling.stop, self._marks, submit.marks, place, reads_calls=calls, stops_anywhere=anywhere),
            queued.constraint,
            is_cut=sampling.max_tokens > room,
            n_top=submit.prompt_logprobs,
            watches_names=tools is not None and not tools.is_required,
        )
        if queued.constraint is not None:
            queued.constraint.begin(place)
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
        n_found = self.prefix_cache.match(prompt, self.scheduler.running.values())
        return n_found is not None and self.scheduler.is_first(len(prompt) - n_found, self._n_spare_cells, step)

    def cancel(self, job: JobKey) -> None:
        """Drop a job; its slot and cells are free before the next step. Unknown jobs are ignored."""
        sequence = self.scheduler.find(job)
        if sequence is not None:
            self._leave(sequence)
            # There may be no next step to report the cells by.
            self._reported()

    def tidy(self) -> bool:
        """Put away a part of the cells that finished jobs have left in the KV memory, while nothing runs. Return False
        if there are none, or if they have to wait."""
        return self._reported(is_changed=self.prefix_cache.tidy(self.scheduler.running.values()))

    def back_up(self) -> bool:
        """Copy out one retained slot, so that its cells outlive this process; they stay in the slot, too. Return False
        if all slots are copied.
        """
        return self._reported(is_changed=self.prefix_cache.back_up())

    def restore(self, found: Found) -> None:
        """Take over the cells that earlier engines have saved."""
        index = self.prefix_cache.index
        n_tokens, n_bytes = index.n_tokens, index.n_bytes
        self._reports.send(
            PrefixCacheFound(
                n_parts=index.restore(found),
                n_tokens=max(0, index.n_tokens - n_tokens),
                n_bytes=max(0, index.n_bytes - n_bytes),
                n_dropped=found.n_dropped,
                dropped_because=found.dropped_because,
            )
        )
        self._reported()

    def step(self) -> None:
        """Admit, choose, run and apply, and report. The results of a step are sent before the next one runs, except if
        a device gets that at once (reports.py)."""
        self._admit()
        step = self._choose()
        if step is not None:
            self._take(step, self._run(step))
        self._report(step)

    def _admit(self) -> None:
        """Give slots to the next sequences, and to each of them the cached cells of its prefix."""
        running = self.scheduler.running.values()
        if self.scheduler.waiting:
            self._give_slots()
        begun = []
        for sequence in running:
            if sequence.state is not State.FOLLOW or not self.prefix_cache.fill(sequence, running):
                continue
            sequence.move(State.REPORT if sequence.has_unreported else State.PREFILL)
            if not sequence.is_begun:
                sequence.is_begun = True
                self._reports.start(sequence)
                begun.append(sequence)
        for sequence in begun:
            if sequence.max_tokens:
                self._go_on(sequence, ())
        n_left = MAX_REPORTED
        for sequence in running:
            if sequence.state is State.REPORT:
                n_left -= self._reports.score(sequence, n_left)
                if not sequence.has_unreported:
                    sequence.move(State.PREFILL)
        if self._reports.next.started or self._reports.next.prompt_logprobs:
            self._close(None)

    def _give_slots(self) -> None:
        """Admit the head of the queue for as long as there is room, or running sequences can be preempted for it."""
        n_shared = partial(self.prefix_cache.n_shared, running=self.scheduler.running.values())
        self.scheduler.admit(self._n_spare_cells, n_shared)
        while preempted := self.scheduler.choose_preemptions(self._n_spare_cells, n_shared):
            for sequence in preempted:
                self._pause(sequence)
                self._reports.next.n_preempted += sequence.is_begun
            self.scheduler.admit(self._n_spare_cells, n_shared)

    def _choose(self) -> Step | None:
        """Return the next step, with drafts if they pay. Sequences are paused until it has room."""
        while (step := self.scheduler.next_step()) is not None and step.n_tokens > self._n_free_cells:
            if self.prefix_cache.evict(self.scheduler.running.values()):
                continue
            victim = self.scheduler.victim()
            if victim is None:
                break
            self._pause(victim)
            self._reports.next.n_victims += victim.is_begun
        if step is None:
            return None
        self.scheduler.begin(step)
        return self._drafts.added_to(step, self.scheduler.running, self._n_free_cells)

    def _pause(self, sequence: Sequence) -> None:
        """Pause a sequence and its stream. Its computed cells are kept, so that it can continue cheaply."""
        self.prefix_cache.keep(sequence)
        self.scheduler.pause(sequence)

    def _run(self, step: Step) -> list[Sampled]:
        """Run a step. While it runs the front knows its jobs, and the intake thread may abort it."""
        jobs = tuple(self.scheduler.running[slice_.slot].job for slice_ in step.slices)
        self._runner.forget_abort()
        self.step_jobs = frozenset(jobs)
        self._reports.announce(step, jobs)
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
                sampled = self._runner.run(step, partial(self._catch_up, step))
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
            self._reports.flush()
        seconds = self._clock() - began_s
        n_drafted, n_accepted = self._drafts.judge(step, sampled, self.scheduler.running, seconds)
        self._reports.next.n_drafted += n_drafted
        self._reports.next.n_accepted += n_accepted
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
            self._pause(victim)
            self._reports.next.n_victims += victim.is_begun
            while self.prefix_cache.evict(self.scheduler.running.values()):
                pass
            return
        (alone,) = self.scheduler.running.values()
        self._fail(alone, "VRAM_OOM", "the KV cache has no room left for this job")

    def _take(self, step: Step, sampled: list[Sampled]) -> None:
        """Apply draws, which come in the order of the slices; a slice whose drafts were right has several."""
        running = self.scheduler.running
        for slice_ in step.slices:
            if slice_.scoring is not None and slice_.slot in running:
                self._reports.score(running[slice_.slot])
        for slot, draws in groupby(sampled, key=lambda each: each.slot):
            self._apply(running[slot], draws)
        for slice_ in step.slices:
            sequence = running.get(slice_.slot)
            if sequence is not None and slice_.n_drafts:
                self._runner.kv.trim(slice_.slot, sequence.n_computed)
            if sequence is not None and sequence.state is State.DECODE and sequence.is_out_of_tokens:
                # It generates nothing, and its prompt is computed now.
                self._finish(sequence, "MAX_TOKENS")

    def _apply(self, sequence: Sequence, draws: Iterable[Sampled]) -> None:
        """Append the tokens that one slice drew. The job may end at any of them; later ones do not count."""
        for i, drawn in enumerate(draws):
            # The token before was a draft, so its cell is computed.
            sequence.n_computed += i > 0
            token = Token(drawn.token, drawn.piece)
            if drawn.error is not None:
                self._fail(sequence, "INFERENCE_FAILED", drawn.error)
            elif drawn.is_end:
                self._append(sequence, token, drawn.logprob, is_end=True)
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
            self._reports.next.deltas += sequence.unreported
            sequence.unreported.clear()
        if reason is not None:
            self._finish(sequence, reason)

    def _finish(self, sequence: Sequence, reason: StopReason) -> None:
        self._reports.finish(sequence, reason)
        self._leave(sequence)

    def _fail(self, sequence: Sequence, code: FailureCode, message: str) -> None:
        self._reports.next.failed.append(Failed(sequence.job, code, message))
        if sequence.slot is not None:
            self._runner.kv.trim(sequence.slot, 0)
        self._release(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """End a sequence and keep its computed cells for later prompts."""
        if sequence.slot is not None:
            self.prefix_cache.keep(sequence)
        self._drafts.remember(sequence)
        self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        if sequence.constraint is not None:
            sequence.constraint.close()

    def _catch_up(self, step: Step) -> None:
        """Do the work that was put off until a device computes the step."""
        self._reports.flush()
        self._drafts.learn(is_idle=False)
        self._drafts.catch_up(self.scheduler.running, N_READ + (2 * step.n_tokens if step.kind == "prefill" else 0))

    def _report(self, step: Step | None) -> None:
        """Report what a step did, then tidy up, because a copy takes milliseconds. If nothing is left to do, check the
        counts of the KV memory.
        """
        if step is not None:
            self._close(step.kind)
        if self.prefix_cache.tidy(self.scheduler.running.values()):
            self._close(None)
        self._report_blocks()
        if self.is_idle or not self._reports.unsent:
            self._drafts.learn(is_idle=self.is_idle)
        if step is None or self.is_idle:
            self._reports.flush()
        if self.is_idle:
            self._check_memory()

    def _reported(self, *, is_changed: bool = True) -> bool:
        """Report at once what has changed between steps, if anything has."""
        if is_changed:
            self._close(None)
            self._report_blocks()
            self._reports.flush()
        return is_changed

    def _close(self, kind: StepKind | None) -> None:
        """Report, in one frame, all that has happened since the last one. `kind`: that of the step that ran."""
        report = self._reports.next
        report.n_threads = self._runner.n_threads
        report.cells_used = self.n_cells_used
        report.prefix_tokens = self.prefix_cache.index.n_tokens
        report.prefix_bytes = self.prefix_cache.index.n_bytes
        report.n_paused = sum(sequence.is_begun for sequence in self.scheduler.waiting)
        report.sampled_at_s = self._clock()
        self._reports.close(kind)

    def _report_blocks(self) -> None:
        if self._journal is not None:
            changes = self._journal.take(self.prefix_cache.held(self.scheduler.running.values()))
            if changes:
                self._reports.send(BlocksChanged(changes=changes))

    def _check_memory(self) -> None:
        """Compare all counts of the KV memory after the last job has left and its end was reported.

        Only retained slots may hold tokens now. Raises: KvMismatch, with both numbers.
        """
        known = {slot: len(each.tokens) for slot, each in self.prefix_cache.retained.items()}
        for slot, n_tokens in enumerate(self._runner.kv.count_tokens()):
            n_known = known.get(SlotId(slot), 0)
            if n_tokens != n_known:
                raise KvMismatch(
                    f"slot {slot} holds {n_tokens} tokens while nothing runs; the engine knows of {n_known}"
                )
        n_used, n_most = self.scheduler.n_cells - self._n_free_cells, sum(known.values())
        # Retained sequences may share prefixes.
        if not max(known.values(), default=0) <= n_used <= n_most:
            raise KvMismatch(f"{n_used} cells are in use while nothing runs; the engine knows of {n_most}")
