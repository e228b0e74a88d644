"""The check of the simulation: two real workers play a trace, the simulation the same one with their step costs.

The policy's code is the simulation's; here it runs in the client. Rounds of measuring and of playing alternate, so that
what else the machine does meets both. Runs on the check's event loop.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tools.bench.exchange import Address
from tools.bench.servers import Plan, served
from tools.fleet_sim.client import ask_worker
from tools.fleet_sim.costs import StepCosts
from tools.fleet_sim.fleet import Fleet
from tools.fleet_sim.measure import Probe, Waits, costs_of
from tools.fleet_sim.policies import Policy, policy_of
from tools.fleet_sim.result import Result, summary
from tools.fleet_sim.sim_worker import Served
from tools.fleet_sim.workloads import Session, Shape

N_WORKERS = 2
BOUND = 0.15
"""The largest allowed error of the simulation."""
TRACE = Shape(n_openings=2, n_opening_tokens=128, turns=(2, 4), text=(16, 96), answer=(16, 48), mean_pause_s=1.5)
"""Conversations that two small workers play in half a minute."""

MEASURES: Mapping[str, Callable[[Result], float]] = {
    "first token, median, s": lambda result: result.first_token_s,
    "tokens/s": lambda result: result.tokens_per_s,
    "cached share of prompts": lambda result: result.cached_share,
}
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    plan: Plan
    policy: str
    n_rounds: int
    n_requests: int
    load: float
    """The approximate share of the time that the workers compute."""
    seed: int
    logs: Path
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Compared:
    """One number, of each round."""

    name: str
    real: Sequence[float]
    simulated: Sequence[float]

    @property
    def difference(self) -> float:
        """The difference of the medians, as a share of the real one."""
        real = median(self.real)
        return (median(self.simulated) - real) / real

    @property
    def is_right(self) -> bool:
        return abs(self.difference) <= BOUND


@dataclass(frozen=True, slots=True)
class Checked:
    costs: Sequence[StepCosts]
    """The costs of each worker."""
    rate: float
    real: Sequence[Result]
    simulated: Sequence[Result]

    @property
    def compared(self) -> list[Compared]:
        return [
            Compared(name, [of(one) for one in self.real], [of(one) for one in self.simulated])
            for name, of in MEASURES.items()
        ]


async def check(wanted: Wanted, say: Say) -> Checked:
    """Raises: NotReached, NotStarted, NoAnswer."""
    async with AsyncExitStack() as stack:
        addresses: list[Address] = []
        for _ in range(N_WORKERS):
            server = await stack.enter_async_context(served(wanted.plan, wanted.logs, wanted.environment))
            addresses.append(server.address)
        probes = [await Probe.of(address, wanted.seed + place) for place, address in enumerate(addresses)]
        say("warm-up")
        waits: list[list[Waits]] = []
        await _measure(probes)
        played: list[tuple[list[Session], list[Served]]] = []
        rate = 0.0
        for number in range(1, wanted.n_rounds + 1):
            say(f"round {number}: measuring")
            waits.append(await _measure(probes))
            costs = await _costs(addresses, waits)
            rate = rate or wanted.load * sum(1 / _request_s(each) for each in costs)
            seed = wanted.seed + number
            sessions = TRACE.sessions(
                seed=seed, n_requests=wanted.n_requests, rate=rate, vocabulary=probes[0].vocabulary
            )
            say(f"round {number}: playing {wanted.n_requests} requests, {rate:.2f} a second")
            played.append((sessions, await play(addresses, _policy(wanted.policy, costs, seed), sessions)))
        costs = await _costs(addresses, waits)
    simulated = []
    for number, (sessions, _) in enumerate(played, start=1):
        fleet = Fleet(costs, wanted.policy, seed=wanted.seed + number)
        fleet.run(sessions)
        simulated.append(_whole(wanted.policy, fleet.served))
    real = [_whole(wanted.policy, got) for _, got in played]
    return Checked(costs, rate, real, simulated)


async def play(addresses: Sequence[Address], policy: Policy, sessions: Sequence[Session]) -> list[Served]:
    """The sessions, each request sent to the worker that the policy chooses. Raises: NotReached, NoAnswer."""
    in_flight = [0] * len(addresses)
    got: list[Served] = []
    began_s = time.perf_counter()

    async def live(session: Session) -> None:
        await asyncio.sleep(began_s + session.begins_s - time.perf_counter())
        for pause_s, ask in session.asks():
            await asyncio.sleep(pause_s)
            worker = policy.choose(ask, in_flight)
            in_flight[worker] += 1
            timed = await ask_worker(addresses[worker], ask)
            in_flight[worker] -= 1
            first_s, ended_s = timed.arrivals_s[0], timed.arrivals_s[-1]
            got.append(Served(ask, worker, timed.sent_s, first_s, ended_s, timed.n_cached, len(timed.arrivals_s)))

    await asyncio.gather(*map(live, sessions))
    return got


def _whole(policy: str, got: Sequence[Served]) -> Result:
    """The result from the first request to the last token; the load of the workers is not compared."""
    whole_s = max(one.ended_s for one in got) - min(one.sent_s for one in got)
    return summary(policy, got, [0.0] * N_WORKERS, whole_s)


async def _measure(probes: Sequence[Probe]) -> list[Waits]:
    """All workers at once: as they share the machine when they play."""
    return await asyncio.gather(*(probe.waits() for probe in probes))


async def _costs(addresses: Sequence[Address], waits: Sequence[Sequence[Waits]]) -> list[StepCosts]:
    """The costs of each worker, from all rounds so far."""
    return [await costs_of(address, own) for address, own in zip(addresses, zip(*waits, strict=True), strict=True)]


def _policy(name: str, costs: Sequence[StepCosts], seed: int) -> Policy:
    known_tokens = min(each.prefix_cache_tokens for each in costs)
    return policy_of(name, n_workers=N_WORKERS, seed=seed, known_tokens=known_tokens, held=lambda _worker, _prompt: 0)


def _request_s(costs: StepCosts) -> float:
    """The time of an ordinary request of the trace on an idle worker: its new text and its answer."""
    n_new, n_tokens = (sum(between) / 2 for between in (TRACE.text, TRACE.answer))
    token_s = costs.step_s("prefill", costs.widest_step) / costs.widest_step
    return n_new * token_s + n_tokens * costs.step_s("decode", 1)
