"""A side without a server: its numbers are made, and it notes when it was asked."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tools.bench.answers import Ask
from tools.bench.measures import Bound, Measure
from tools.bench.scenarios import Scenario
from tools.bench.sides import Part, Turn


@dataclass
class FakeSide:
    """Its n-th turn gives the n-th value for every measure of the scenario; None is a turn that failed."""

    name: str
    values: Sequence[float | None]
    book: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    """Side, scenario, prompts: of all sides that share it."""
    only: str | None = None
    part: Part = "judged"
    per_cpu_s: float = 0.0
    pids: Sequence[int] = ()

    def plays(self, scenario: Scenario) -> bool:
        return self.only in (None, scenario.name)

    def bound(self, measure: Measure) -> Bound | None:
        return measure.bound if self.part == "judged" else None

    async def turn(self, scenario: Scenario, asks: Sequence[Ask]) -> Turn:
        n_before = sum(entry[:2] == (self.name, scenario.name) for entry in self.book)
        self.book.append((self.name, scenario.name, tuple(ask.prompt for ask in asks)))
        value = self.values[n_before % len(self.values)]
        if value is None:
            return Turn(numbers={}, n_asked=4, n_failed=1, error="the stream was cut")
        numbers = {measure.name: value for measure in scenario.measures}
        return Turn(numbers=numbers, n_asked=4, per_cpu_s=self.per_cpu_s)
