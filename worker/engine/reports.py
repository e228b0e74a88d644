"""The engine's reports: what happens is collected in one frame a step, and frames are sent to the front in order."""

from collections.abc import Callable

from worker.engine.sequence import Sequence
from worker.engine.step import Score, Step
from worker.wire.jobs import (
    Finished,
    JobKey,
    Logprob,
    PromptLogprobs,
    Started,
    StepBegun,
    StepDone,
    StepKind,
    StopReason,
)
from worker.wire.messages import Outbound

MAX_REPORTED = 4096
"""The largest number of log-probabilities of cached prompts in one report, those of the most probable tokens included.
Each takes a microsecond or two here, while other jobs wait for their next token, and as much to read; all of them are
some 100 KB."""


class Reports:
    """Collects what happens in `next`, and sends it.

    A frame is sent at once, except if `is_overlapping`, which says that a device computes steps. A device gets the next
    decode step of the same shape within a tenth of a millisecond, and frames are sent after that (`flush`), so that it
    never waits. `emit` takes frames and never blocks; `logprob` is the runner's.
    """

    def __init__(
        self, emit: Callable[[Outbound], None], logprob: Callable[[Score, int], Logprob], *, is_overlapping: bool
    ) -> None:
        self._emit = emit
        self._logprob = logprob
        self._is_overlapping = is_overlapping
        self.next = StepDone()
        """The frame in which what happens now is collected."""
        self.unsent: list[Outbound] = []
        """The frames that wait until a device computes the next step."""
        self._announced: tuple[JobKey, ...] = ()
        self._shape: tuple[StepKind, int] = ("prefill", 0)
        """The kind of the last step and the number of its tokens."""

    def start(self, sequence: Sequence) -> None:
        self.next.started.append(Started(sequence.job, min(sequence.n_computed, len(sequence.prompt))))

    def score(self, sequence: Sequence, n_most: int = MAX_REPORTED) -> int:
        """Report the next log-probabilities of a sequence's prompt, at most `n_most` of them, those of the most
        probable tokens included. Return how many were reported.
        """
        assert sequence.n_top is not None
        n_each = 1 + sequence.n_top
        start, end = sequence.n_reported, min(sequence.n_reported + n_most // n_each, sequence.n_reportable)
        if start >= end:
            return 0
        logprobs = tuple(self._logprob(score, sequence.n_top) for score in sequence.scores[start:end])
        self.next.prompt_logprobs.append(PromptLogprobs(sequence.job, start, logprobs))
        sequence.n_reported = end
        return n_each * len(logprobs)

    def finish(self, sequence: Sequence, reason: StopReason) -> None:
        text, is_full = sequence.text, reason == "MAX_TOKENS" and sequence.is_cut
        drafts = sequence.n_drafted, sequence.n_accepted
        self.next.finished.append(Finished(sequence.job, reason, text.matched, is_full, *drafts, text.n_reasoning))

    def announce(self, step: Step, jobs: tuple[JobKey, ...]) -> None:
        """Report a step's jobs before it runs. All is sent then if they or the shape are new: the front must know which
        jobs to blame before anything can happen, and a device takes long to prepare another graph.
        """
        before, self._shape = self._shape, (step.kind, step.n_tokens)
        if jobs != self._announced:
            self._announced = jobs
            self.send(StepBegun(jobs=jobs))
            self.flush()
        elif before != self._shape:
            self.flush()

    def close(self, kind: StepKind | None) -> None:
        """Send all that has happened in one frame. `kind` is that of the step that ran. No decode step of the same
        shape follows on a step of a prompt, or at a job's end.
        """
        frame, self.next = self.next, StepDone()
        frame.kind = kind
        self.send(frame)
        if kind == "prefill" or frame.finished:
            self.flush()

    def send(self, frame: Outbound) -> None:
        self.unsent.append(frame)
        if not self._is_overlapping:
            self.flush()

    def flush(self) -> None:
        """Send all frames that wait."""
        while self.unsent:
            self._emit(self.unsent.pop(0))
