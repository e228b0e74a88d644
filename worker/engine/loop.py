"""One step after the other: admit, choose, run, apply, report. A reader who finds `Engine.step` has found the program.

Runs on the step thread; pure (the runner and the way out are passed in). Every job it accepts leaves exactly once, as
Finished, Failed or cancelled.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby

from worker.engine.backend import (
    Aborted,
    BadBatch,
    Constraint,
    Found,
    KvMismatch,
    LoadedDraft,
    NoRoom,
    Runner,
    Sampled,
    Step,
    Token,
)
from worker.engine.channels import NO_MARKS, Channel, ChannelText, Marks
from worker.engine.config import EngineConfig
from worker.engine.drafting.draft_model import DraftModel
from worker.engine.drafting.drafts import N_READ, Drafts
from worker.engine.drafting.predicted import Predicted
from worker.engine.kv_blocks import BlockJournal
from worker.engine.prefix_cache import PrefixCache
from worker.engine.scheduler import Scheduler
from worker.engine.sequence import Sequence, State
from worker.limits import MAX_DRAFTS
from worker.wire.messages import (
    BlocksChanged,
    Delta,
    Failed,
    FailureCode,
    Finished,
    JobKey,
    Logprob,
    MarkUse,
    Outbound,
    PrefixCacheFound,
    PromptLogprobs,
    Sampling,
    SlotId,
    Started,
    StepBegun,
    StepDone,
    StepKind,
    StopReason,
    TokenId,
)

MOST_WORTHWHILE = 256
"""A sequence waits for so many tokens that another one is computing, however many a chunk has."""

MOST_HEADROOM = 512
"""So many cells are kept free for the next step. One that needs more gets them when it is chosen."""

MOST_TOLD = 4096
"""How many log-probabilities of known prompts, those of the most probable tokens included, are told with one step. Each
takes a microsecond or two here, where others wait for their next token, and as much to read; all are some 100 KB."""


def _keep_quiet(_warning: str) -> None:
    pass


def _draft_model(
    draft: LoadedDraft | None, config: EngineConfig, clock: Callable[[], float], warn: Callable[[str], None]
) -> DraftModel | None:
    if draft is None or not config.row_costs or not draft.row_costs:
        return None
    return DraftModel(
        draft.runner,
        draft.row_costs,
        n_most=config.draft_max,
        itl_target_s=config.itl_target_s,
        clock=clock,
        on_lost=lambda why: warn(f"the draft model has failed and is not asked any more: {why}"),
    )


class Engine:
    """Continuous batching over one runner, as `config` says.

    `emit` takes frames in order and never blocks; `clock` gives the monotonic seconds that frames carry. `warn` is told
    of what has failed and ends no job. `while_running`: entered while a step runs, and nothing here changes.
    """

    def __init__(
        self,
        runner: Runner,
        config: EngineConfig,
        *,
        emit: Callable[[Outbound], None],
        clock: Callable[[], float],
        draft: LoadedDraft | None = None,
        marks: Marks = NO_MARKS,
        warn: Callable[[str], None] = _keep_quiet,
        while_running: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._runner = runner
        self._while_running = while_running
        self._itl_target_s = config.itl_target_s
        self._context_length = config.context_length
        self._n_headroom = min(max(config.chunk, config.widest_step), MOST_HEADROOM) + MAX_DRAFTS
        """The number of cells that are kept free for the next step."""
        self._emit = emit
        self._clock = clock
        self._marks = marks
        self._n_unpromised_cells = runner.kv.n_free_cells - config.n_cells
        """The library rounds a context up; these cells are nobody's."""
        self._journal = BlockJournal() if config.tells_blocks else None
        self.prefix_cache = PrefixCache(
            runner.kv,
            limit_bytes=config.prefix_cache_bytes,
            grain=config.chunk if config.is_deterministic else 1,
            worthwhile=min(config.chunk, MOST_WORTHWHILE),
            retained_slots=config.retained_slots,
            most_dead_cells=config.most_dead_cells,
            journal=self._journal,
        )
        self.scheduler = Scheduler(
            n_slots=config.n_slots,
            n_cells=config.n_cells,
            budget=config.prefill_budget(can_abort=runner.can_abort),
            policy=config.policy(can_keep=self.prefix_cache.is_keeping),
        )
        self._drafts = Drafts(
            config.row_costs,
            config.history_bytes,
            switch_s=config.switch_s,
            has_own_text=config.has_own_drafts,
            model=_draft_model(draft, config, clock, warn),
            clock=clock,
        )
        self.step_jobs: frozenset[JobKey] = frozenset()
        """Jobs of the step that runs now; read by the intake thread to decide whether to abort it."""
        self._run_now: tuple[Step, float] | None = None
        """The prefill step that runs now and may be stopped for a newcomer, and when it should end."""
        self._announced: tuple[JobKey, ...] = ()
        self._step_report = StepDone()
        """The next frame, in which what happens until then is collected."""
        self._unsent: list[Outbound] = []
        """Frames that are sent while a device computes the next step; on a CPU none waits."""
        self._shape: tuple[StepKind, int] = ("prefill", 0)
        """The kind of the last step and the number of its tokens."""

    @property
    def is_idle(self) -> bool:
        return self.scheduler.is_idle

    @property
    def n_cells_used(self) -> int:
        """Cells that running jobs hold. What is retained does not count, because it gives way to any job."""
        return self.scheduler.n_cells - self._n_spare_cells if self.scheduler.running else 0

    @property
    def _n_free_cells(self) -> int:
        return self._runner.kv.n_free_cells - self._n_unpromised_cells

    @property
    def _n_spare_cells(self) -> int:
        """Cells that no job holds."""
        return self._n_free_cells + self.prefix_cache.n_dead_cells

    def submit(
        self,
        job: JobKey,
        prompt: list[TokenId],
        max_tokens: int,
        sampling: Sampling,
        stop: Seq[str] = (),
        *,
        constraint: Constraint | None = None,
        prompt_logprobs: int | None = None,
        prediction: Seq[TokenId] = (),
        marks: MarkUse = "hidden",
    ) -> None:
        """Queue a job whose prompt fits: 1 ≤ len(prompt) < context_length, or ≤ where max_tokens is 0 and nothing is to
        be generated. max_tokens is cut to the room left. `prompt_logprobs`: how many of the most probable tokens are
        told beside each of the prompt's, at most MAX_TOPS; None: the prompt's log-probabilities are not.
        `prediction`: a text that the answer will probably repeat, which changes no token of it.

        The engine owns the constraint from here on.
        """
        room = self._context_length - len(prompt)
        # A constraint lets no control token end what a prompt has opened: what satisfies it is the answer.
        is_opened = marks == "split" and constraint is None
        channel = self._marks.channel_after(prompt) if is_opened else Channel.CONTENT
        text, is_cut = ChannelText(stop, self._marks, marks, channel), max_tokens > room
        sequence = Sequence(
            job,
            prompt,
            min(max_tokens, room),
            sampling,
            text,
            constraint=constraint,
            is_cut=is_cut,
            predicted=Predicted(prediction) if prediction else None,
            n_top=prompt_logprobs,
        )
        if constraint is not None:
            constraint.end_within(sequence.max_tokens)
        self.scheduler.add(sequence)

    def is_in_the_way(self, prompt: list[TokenId]) -> bool:
        """True if the step that runs is to be stopped for a job with this prompt, which has just come: its prompt would
        be read first, and it would wait for longer than a target. Asked on any thread, but only while a step runs.
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
        """Forget a job; its slot and cells are free before the next step. Unknown jobs are ignored."""
        sequence = self.scheduler.find(job)
        if sequence is not None:
            self._leave(sequence)
            # There may be no next step to report the cells by.
            self._report_changes()

    def put_away(self) -> None:
        """Empty the retained slots; what no running job goes on from is copied out first."""
        if self.prefix_cache.put_away(self.scheduler.running.values()):
            self._report_changes()

    def back_up(self) -> bool:
        """Copy out what one retained slot has, so that it outlives this process; it stays there, too. False where all
        is copied.
        """
        is_copied = self.prefix_cache.back_up()
        if is_copied:
            self._report_changes()
        return is_copied

    def restore(self, found: Found) -> None:
        """Take over what engines before this one have kept."""
        index = self.prefix_cache.index
        n_tokens, n_bytes = index.n_tokens, index.n_bytes
        n_parts = sum(self.prefix_cache.restore(tokens, saved) for tokens, saved in found.parts)
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
        """Admit, choose, run, apply, report; where nothing is left to do, compare what is in the memory.

        What the last step gave is sent before the next one runs. Only where a device computes decode steps that are
        all alike, which it is given in a tenth of a millisecond, it is sent as soon as the device has the next one.
        """
        self._admit()
        step = self._choose()
        if step is not None:
            self._take_step(step)
        self._tell_blocks()
        if step is None or self.is_idle:
            self._send_all()
        if self.is_idle:
            self._check_memory()

    def _take_step(self, step: Step) -> None:
        self._apply(step, self._run(step))
        self._report(step.kind)
        if step.kind == "prefill":
            self._send_all()
        self._tidy()
        if self.is_idle or not self._runner.is_asynchronous:
            self._drafts.learn(is_idle=self.is_idle)

    def tidy(self) -> bool:
        """Put away a part of what ended jobs have left in the KV memory, while nothing runs. False where all is tidy,
        or that has to wait.
        """
        is_changed = self._tidy()
        self._send_all()
        return is_changed

    def _tidy(self) -> bool:
        """Only behind the report: a copy takes milliseconds."""
        is_changed = self.prefix_cache.tidy(self.scheduler.running.values(), self._n_headroom)
        if is_changed:
            self._report(None)
            self._tell_blocks()
        return is_changed

    def _tell_blocks(self) -> None:
        if self._journal is not None:
            changes = self._journal.take(self.prefix_cache.in_memory(self.scheduler.running.values()))
            if changes:
                self._send(BlocksChanged(changes=changes))

    def _check_memory(self) -> None:
        """Compare all counts of what is in the memory, now that the last job has left and its end was told.

        No slot holds a token but those that retain ended jobs'. Raises: KvMismatch, with both numbers.
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
        # Retained sequences may share their beginnings.
        if not max(lengths, default=0) <= n_used <= sum(lengths):
            raise KvMismatch(f"{n_used} cells are in use while nothing runs; the engine knows of {sum(lengths)}")

    # ── admit ────────────────────────────────────────────────────────────────────────────────────

    def _admit(self) -> None:
        """Give slots to those that come next, and to each what the prefix cache has of its beginning."""
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
        self._tell_found()
        if self._step_report.started or self._step_report.prompt_logprobs:
            self._report(None)

    def _give_slots(self) -> None:
        """Admit the queue's head for as long as there is room, or those that run give way to it."""
        running = self.scheduler.running.values()

        def n_shared(sequence: Sequence) -> int:
            return self.prefix_cache.n_shared(sequence, running)

        self.scheduler.admit(self._n_spare_cells, n_shared)
        while giving_way := self.scheduler.give_way(self._n_spare_cells, n_shared):
            for sequence in giving_way:
                self._pause(sequence)
                self._step_report.n_yielded += sequence.is_begun
            self.scheduler.admit(self._n_spare_cells, n_shared)

    def _tell_found(self) -> None:
        """Tell the log-probabilities that sequences have found with their beginning, MOST_TOLD of all with a step."""
        n_left = MOST_TOLD
        for sequence in self.scheduler.running.values():
            if sequence.state is State.TELL:
                n_left -= self._tell(sequence, n_left)
                if not sequence.has_untold:
                    sequence.move(State.PREFILL)

    def _tell(self, sequence: Sequence, n_most: int = MOST_TOLD) -> int:
        """Tell the next log-probabilities of a sequence's prompt, at most so many with those of the most probable
        tokens; how many that were.
        """
        assert sequence.n_top is not None
        n_each = 1 + sequence.n_top
        start, end = sequence.n_told, min(sequence.n_told + n_most // n_each, sequence.n_tellable)
        if start >= end:
            return 0
        logprobs = tuple(self._runner.logprob(score, sequence.n_top) for score in sequence.scores[start:end])
        self._step_report.prompt_logprobs.append(PromptLogprobs(sequence.job, start, logprobs))
        sequence.n_told = end
        return n_each * len(logprobs)

    # ── choose ───────────────────────────────────────────────────────────────────────────────────

    def _choose(self) -> Step | None:
        """The next step, with drafts where they pay. Sequences are paused until it has room."""
        while (step := self.scheduler.next_step()) is not None and step.n_tokens > self._n_free_cells:
            if self.prefix_cache.give_up(self.scheduler.running.values()):
                continue
            victim = self.scheduler.victim()
            if victim is None:
                break
            self._preempt(victim)
        if step is None:
            return None
        self.scheduler.begin(step)
        return self._drafts.added_to(step, self.scheduler.running, self._n_free_cells)

    def _preempt(self, sequence: Sequence) -> None:
        """Pause a sequence because the cells have run out."""
        self._pause(sequence)
        self._step_report.n_preempted += sequence.is_begun

    def _pause(self, sequence: Sequence) -> None:
        """Pause a sequence and its stream. What it computed is kept, so that going on costs little."""
        assert sequence.slot is not None
        self.prefix_cache.keep(sequence)
        self._runner.kv.trim(sequence.slot, 0)
        self.scheduler.pause(sequence)

    # ── run ──────────────────────────────────────────────────────────────────────────────────────

    def _run(self, step: Step) -> list[Sampled]:
        """Run a step. While it runs the front knows its jobs, and the intake thread may abort it."""
        jobs = tuple(self.scheduler.running[slice_.slot].job for slice_ in step.slices)
        self._runner.forget_abort()
        self.step_jobs = frozenset(jobs)
        told = self._announced
        if jobs != told:
            self._announced = jobs
            self._send(StepBegun(jobs=jobs))
        before, self._shape = self._shape, (step.kind, step.n_tokens)
        if before != self._shape or jobs != told:
            # Whom to blame is known before anything can happen; and to prepare another graph takes a device long.
            self._send_all()
        sampled = self._attempt(step)
        self.step_jobs = frozenset()
        return sampled

    def _attempt(self, step: Step) -> list[Sampled]:
        """What the step drew. Jobs that it cannot go on with are paused or failed, and an aborted step drew nothing."""
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
        """Nothing of a bad batch was kept: run its halves, until the slice at fault stands alone and fails alone."""
        if len(step.slices) == 1:
            sequence = self.scheduler.running[step.slices[0].slot]
            self._fail(sequence, "INFERENCE_FAILED", f"the model refused this job's tokens: {error}")
            return []
        half = len(step.slices) // 2
        sampled = self._attempt(Step(step.kind, step.slices[:half]))
        # A job may have been paused for the first half, or is for the second: then it has no turn in this step.
        rest = tuple(slice_ for slice_ in step.slices[half:] if slice_.slot in self.scheduler.running)
        sampled += self._attempt(Step(step.kind, rest)) if rest else []
        return [each for each in sampled if each.slot in self.scheduler.running]

    def _yield_to_others(self) -> None:
        """The library found no room where the engine counted some: pause a job, or fail one that is alone."""
        victim = self.scheduler.victim()
        if victim is not None:
            self._preempt(victim)
            while self.prefix_cache.give_up(self.scheduler.running.values()):
                pass
            return
        (alone,) = self.scheduler.running.values()
        self._fail(alone, "VRAM_OOM", "the KV cache has no room left for this job")

    # ── apply ────────────────────────────────────────────────────────────────────────────────────

    def _apply(self, step: Step, sampled: list[Sampled]) -> None:
        """Draws come in the order of the slices; a slice whose drafts were right has several."""
        running = self.scheduler.running
        if step.kind == "prefill":
            self._tell_scored(step)
        for slot, draws in groupby(sampled, key=lambda each: each.slot):
            self._take(running[slot], draws)
        for slice_ in step.slices:
            if slice_.n_drafts and slice_.slot in running:
                self._runner.kv.trim(slice_.slot, running[slice_.slot].n_computed)
        if step.kind == "prefill":
            self._finish_without_tokens(step)

    def _tell_scored(self, step: Step) -> None:
        for slice_ in step.slices:
            if slice_.scoring is not None and slice_.slot in self.scheduler.running:
                self._tell(self.scheduler.running[slice_.slot])

    def _finish_without_tokens(self, step: Step) -> None:
        """End the jobs whose prompt is computed now and that want nothing generated."""
        for slice_ in step.slices:
            sequence = self.scheduler.running.get(slice_.slot)
            if sequence is not None and sequence.state is State.DECODE and sequence.is_out_of_tokens:
                self._finish(sequence, "MAX_TOKENS")

    def _take(self, sequence: Sequence, draws: Iterable[Sampled]) -> None:
        """Go on by the tokens that one slice drew. The job may end at any of them; those behind it do not count."""
        for i, drawn in enumerate(draws):
            # The token before was a draft, so that its cell is there.
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
        """Append what was drawn and what the sequence's constraint forces behind it, until the job ends."""
        tokens = sequence.followed(drawn)
        for n_left, each in zip(reversed(range(len(tokens))), tokens, strict=True):
            self._append(sequence, each, logprob, is_over=n_left == 0 and sequence.is_over)
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
        sequence.untold.append(
            Delta(sequence.job, text, logprob if sequence.text.is_answer else None, sequence.text.is_reasoning)
        )
        if reason is not None or sequence.state is State.DECODE:
            self._step_report.deltas += sequence.untold
            sequence.untold.clear()
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
        """End a sequence and keep what it computed for later prompts."""
        self.prefix_cache.keep(sequence)
        self._drafts.remember(sequence)
        self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        slot = sequence.slot
        self.scheduler.remove(sequence)
        if sequence.constraint is not None:
            sequence.constraint.close()
        if slot is not None:
            self._runner.kv.trim(slot, 0)

    # ── report ───────────────────────────────────────────────────────────────────────────────────

    def _send(self, frame: Outbound) -> None:
        """Send a frame at once or, where a device computes, with the next step: until that has work it would wait."""
        self._unsent.append(frame)
        if not self._runner.is_asynchronous:
            self._send_all()

    def _send_all(self) -> None:
        while self._unsent:
            self._emit(self._unsent.pop(0))

    def _catch_up(self) -> None:
        """Do what was put off until a device computes the next step."""
        self._send_all()
        self._drafts.learn(is_idle=False)
        kind, n_tokens = self._shape
        self._drafts.catch_up(self.scheduler.running, N_READ + (2 * n_tokens if kind == "prefill" else 0))

    def _report_changes(self) -> None:
        """Tell, at once, what has changed between steps."""
        self._report(None)
        self._tell_blocks()
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
