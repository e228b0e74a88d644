"""Rounds in which the sides take turns at every scenario, and all that came of them.

Owns the order: a warm-up that does not count, then rounds that begin with another side each; never two sides at once,
never one before all are quiet. Refuses to know what a side is. Runs on the load's event loop.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tools.bench.answers import Ask
from tools.bench.processes import cpu_s
from tools.bench.scenarios import Scenario
from tools.bench.sides import Side, Turn, until_quiet
from tools.bench.words import Prompts

Tell = Callable[[int, Scenario, str], None]
"""Is told the round (0 is the warm-up), the scenario and the side before each turn."""


@dataclass(frozen=True, slots=True)
class Played:
    """All turns of the counted rounds at one scenario."""

    scenario: Scenario
    turns: dict[str, list[Turn]]
    """By side, ours first; round by round."""


class Rounds:
    """`sides` has ours first. What was played is in `played`, also when a round breaks off."""

    def __init__(self, sides: Sequence[Side], scenarios: Sequence[Scenario], prompts: Prompts, tell: Tell) -> None:
        self._sides = sides
        self._prompts = prompts
        self._tell = tell
        self.played = [Played(scenario, {side.name: [] for side in self._playing(scenario)}) for scenario in scenarios]
        self.busiest_idle: dict[str, float] = {}
        """By side: the most of a processor that it used while another one was measured."""

    async def play(self, numbers: Sequence[int]) -> None:
        """The rounds of these numbers; round 0 is the warm-up, which is not kept. Raises: NotReached."""
        for number in numbers:
            for played in self.played:
                await self._round(played, number)

    async def _round(self, played: Played, number: int) -> None:
        asks = played.scenario.asks(self._prompts)
        for side in in_order(self._playing(played.scenario), number):
            await until_quiet([pid for other in self._sides for pid in other.pids])
            self._tell(number, played.scenario, side.name)
            turn = await self._watched(side, played.scenario, asks)
            if number > 0:
                played.turns[side.name].append(turn)

    async def _watched(self, side: Side, scenario: Scenario, asks: Sequence[Ask]) -> Turn:
        """The side's turn, with an eye on what the others do meanwhile."""
        others = [(other, cpu_s(other.pids)) for other in self._sides if other is not side]
        turn = await side.turn(scenario, asks)
        for other, before_s in others:
            share = (cpu_s(other.pids) - before_s) / turn.wall_s
            self.busiest_idle[other.name] = max(share, self.busiest_idle.get(other.name, 0.0))
        return turn

    def _playing(self, scenario: Scenario) -> list[Side]:
        return [side for side in self._sides if side.plays(scenario)]


def in_order(sides: Sequence[Side], number: int) -> list[Side]:
    """Forwards and backwards in turn, so that none always comes after the same."""
    return list(sides if number % 2 else reversed(sides))
