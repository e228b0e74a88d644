"""What a step has to tell the front, collected until it is told. Step thread."""

from dataclasses import dataclass, field

from worker.wire.messages import Delta, Failed, Finished, Started, StepDone, StepKind


@dataclass(slots=True)
class StepReport:
    started: list[Started] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    n_preempted: int = 0
    n_drafted: int = 0
    n_accepted: int = 0

    def told(
        self, kind: StepKind | None, *, cells_used: int, prefix_tokens: int, prefix_bytes: int, at_s: float
    ) -> StepDone:
        """All of it as one frame; what is told is forgotten."""
        frame = StepDone(
            started=tuple(self.started),
            deltas=tuple(self.deltas),
            finished=tuple(self.finished),
            failed=tuple(self.failed),
            kind=kind,
            cells_used=cells_used,
            prefix_tokens=prefix_tokens,
            prefix_bytes=prefix_bytes,
            n_preempted=self.n_preempted,
            n_drafted=self.n_drafted,
            n_accepted=self.n_accepted,
            sampled_at_s=at_s,
        )
        for told in (self.started, self.deltas, self.finished, self.failed):
            told.clear()
        self.n_preempted = self.n_drafted = self.n_accepted = 0
        return frame
