"""One run of `load`: servers are started, take turns in rounds, and are ended; what came of it is a report.

Owns the order: rounds that begin with another side each, with a warm-up before each that does not count; never two
sides at once, never one before all are quiet. Refuses to know options and output (load_command.py). Runs on the load's
event loop.

Scenarios for which peers speculate have servers of their own, so that never all of them are in memory. All servers are
started anew for every round: two processes of the same program differ in speed by up to four per cent
for as long as they live, and rounds on the same two would take that for a difference of the programs.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from tools.bench.processes import memory_of
from tools.bench.prompts import Prompts
from tools.bench.report import Circumstances, Played, Report, Resident, failures_of, lines_of, resident_of
from tools.bench.scenarios import WARM_UP, Scenario
from tools.bench.servers import Plan, served
from tools.bench.sides import Part, ServedSide, Side, Tool, Turn, plays, until_quiet

Announce = Callable[[int, Scenario], None]
"""A function that gets the round (0 is a warm-up) and the scenario before each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The scenarios to measure, and the sides."""

    sides: Sequence[tuple[Part, Plan]]
    """Ours first. One that plays none of the scenarios is not started."""
    tools: Sequence[Tool]
    scenarios: Sequence[Scenario]
    logs: Path
    """A folder for the logs of what is started."""
    circumstances: Circumstances


async def measure(wanted: Wanted, announce: Announce) -> Report:
    """Everything wanted. Raises: NotReached, NotStarted."""
    prompts, resident, versions = Prompts(wanted.circumstances.seed), list[Resident](), dict[str, str]()
    groups = [Rounds(scenarios, prompts, announce) for scenarios in groups_of(wanted.scenarios)]
    for number in range(1, wanted.circumstances.n_rounds + 1):
        for rounds in groups:
            async with AsyncExitStack() as stack:
                sides = await _open_sides(stack, wanted, rounds.scenarios)
                await rounds.warm_up(sides)
                await rounds.play(number, sides)
                servers = [side for side in sides if isinstance(side, ServedSide)]
                versions |= {server.name: server.version for server in servers if server.version}
                # A model's pages are in memory once they have been computed with.
                resident = resident or resident_of(
                    {one.name: {part: memory_of(pid) for part, pid in one.processes.items()} for one in servers}
                )
    order = [scenario.name for scenario in wanted.scenarios]
    played = sorted([one for rounds in groups for one in rounds.played], key=lambda one: order.index(one.scenario.name))
    return Report(
        circumstances=replace(wanted.circumstances, versions={**wanted.circumstances.versions, **versions}),
        lines=[line for one in played for line in lines_of(one)],
        failures=[failure for one in played for failure in failures_of(one)],
        resident=resident,
    )


def groups_of(scenarios: Iterable[Scenario]) -> list[list[Scenario]]:
    """The scenarios that are played on the same servers."""
    groups: tuple[list[Scenario], list[Scenario]] = ([], [])
    for scenario in scenarios:
        groups["speculating" in scenario.peers].append(scenario)
    return [group for group in groups if group]


async def _open_sides(stack: AsyncExitStack, wanted: Wanted, scenarios: Sequence[Scenario]) -> list[Side]:
    sides: list[Side] = []
    for part, plan in wanted.sides:
        if any(plays(part, scenario) for scenario in scenarios):
            sides.append(await stack.enter_async_context(served(plan, part, wanted.logs)))
    return sides + [tool for tool in wanted.tools if any(map(tool.plays, scenarios))]


class Rounds:
    """The same scenarios again and again; what was played is in `played`, also when a round breaks off."""

    def __init__(self, scenarios: Sequence[Scenario], prompts: Prompts, announce: Announce) -> None:
        self.scenarios = scenarios
        self._prompts = prompts
        self._announce = announce
        self.played = [Played(scenario) for scenario in scenarios]

    async def warm_up(self, sides: Sequence[Side]) -> None:
        """One stream on each side; nothing of it is kept. Raises: NotReached."""
        self._announce(0, WARM_UP)
        asks = WARM_UP.asks(self._prompts)
        for side in sides:
            await side.turn(WARM_UP, asks)

    async def play(self, number: int, sides: Sequence[Side]) -> None:
        """The round of this number, from 1 on. `sides` has ours first, and the same names in every call.

        Raises: NotReached.
        """
        for played in self.played:
            turns = await self._turns(number, played.scenario, sides)
            played.sides = [side for side in sides if side.name in turns]
            for name, turn in turns.items():
                played.turns.setdefault(name, []).append(turn)

    async def _turns(self, number: int, scenario: Scenario, sides: Sequence[Side]) -> dict[str, Turn]:
        """The turns by side. The order alternates between forwards and backwards, so that no side always follows the
        same one."""
        self._announce(number, scenario)
        asks = scenario.asks(self._prompts)
        playing = [side for side in sides if side.plays(scenario)]
        turns: dict[str, Turn] = {}
        for side in playing if number % 2 else reversed(playing):
            await until_quiet([pid for each in sides for pid in each.pids])
            turns[side.name] = await side.turn(scenario, asks)
        return turns
