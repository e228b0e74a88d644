"""One run of `bench load`: the servers are started, play their rounds, and are ended; what was found is a report.

Owns the order of these. Refuses to know options and output (load_command.py). Runs on the load's event loop.
"""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tools.bench.comparison import failures_of, lines_of
from tools.bench.overload import WORKER_FLAGS as OVERLOAD_FLAGS
from tools.bench.overload import Overload, overload
from tools.bench.processes import resident_bytes
from tools.bench.report import Circumstances, Report, Resident, resident_of
from tools.bench.rounds import Played, Rounds, Tell
from tools.bench.scenarios import Scenario
from tools.bench.servers import Plan, served
from tools.bench.sides import LlamaBench, ServedSide, Side
from tools.bench.words import Prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be measured, on what."""

    ours: Plan
    peers: Sequence[Plan]
    speculating: Plan | None
    """llama-server with its own speculation."""
    llama_bench: LlamaBench | None
    scenarios: Sequence[Scenario]
    n_refusals: int
    """How many refusals of a full worker are timed; 0 leaves the overload out."""
    n_rounds: int
    seed: int
    logs: Path
    """A folder for the logs of what is started."""
    environment: Mapping[str, str]


@dataclass(slots=True)
class Found:
    """What a run leaves behind."""

    wanted: Wanted
    played: list[tuple[Played, Sequence[Side]]] = field(default_factory=list)
    resident: Sequence[Resident] = ()
    overload: Overload | None = None
    busiest_idle: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    """Of the peers."""

    def report(self, circumstances: Circumstances, notes: Sequence[str]) -> Report:
        order = {scenario.name: place for place, scenario in enumerate(self.wanted.scenarios)}
        played = sorted(self.played, key=lambda pair: order[pair[0].scenario.name])
        return Report(
            circumstances=circumstances,
            lines=[line for one, sides in played for line in lines_of(one, sides)],
            failures=[failure for one, _ in played for failure in failures_of(one)],
            resident=self.resident,
            overload=self.overload,
            busiest_idle=self.busiest_idle,
            notes=notes,
        )


async def measure(wanted: Wanted, tell: Tell) -> Found:
    """Everything wanted. Raises: NotReached, NotStarted, NotFull."""
    found = Found(wanted)
    prompts = Prompts(wanted.seed)
    await _together(found, prompts, tell)
    for scenario in wanted.scenarios:
        if scenario.worker_flags:
            await _alone(found, scenario, prompts, tell)
    if wanted.n_refusals:
        async with served(wanted.ours.with_flags(OVERLOAD_FLAGS), wanted.logs, wanted.environment) as server:
            found.overload = await overload(server, prompts, wanted.n_refusals)
    return found


async def _together(found: Found, prompts: Prompts, tell: Tell) -> None:
    """The scenarios of all sides, in alternating rounds; memory is read after the warm-up."""
    wanted = found.wanted
    scenarios = [scenario for scenario in wanted.scenarios if not scenario.worker_flags]
    if not scenarios:
        return
    async with AsyncExitStack() as stack:
        sides = await _open_sides(stack, found, scenarios)
        rounds = Rounds(sides, scenarios, prompts, tell)
        await rounds.play([0])
        found.resident = resident_of(
            {
                side.name: {part: resident_bytes(pid) for part, pid in side.server.pids.items()}
                for side in sides
                if isinstance(side, ServedSide)
            }
        )
        await rounds.play(range(1, wanted.n_rounds + 1))
    found.played += [(played, sides) for played in rounds.played]
    found.busiest_idle.update(rounds.busiest_idle)


async def _alone(found: Found, scenario: Scenario, prompts: Prompts, tell: Tell) -> None:
    """A scenario that has a worker of its own."""
    wanted = found.wanted
    async with served(wanted.ours.with_flags(scenario.worker_flags), wanted.logs, wanted.environment) as server:
        sides = [ServedSide(server, is_ours=True)]
        rounds = Rounds(sides, [scenario], prompts, tell)
        await rounds.play(range(wanted.n_rounds + 1))
    found.played += [(played, sides) for played in rounds.played]


async def _open_sides(stack: AsyncExitStack, found: Found, scenarios: Sequence[Scenario]) -> list[Side]:
    wanted = found.wanted
    sides: list[Side] = []
    plans = [wanted.ours, *wanted.peers]
    if wanted.speculating and any(scenario.is_lookup for scenario in scenarios):
        plans.append(wanted.speculating)
    for plan in plans:
        server = await stack.enter_async_context(served(plan, wanted.logs, wanted.environment))
        if server.version:
            found.versions[plan.name] = server.version
        sides.append(ServedSide(server, is_ours=plan is wanted.ours, is_speculating=plan is wanted.speculating))
    return [*sides, wanted.llama_bench] if wanted.llama_bench else sides
