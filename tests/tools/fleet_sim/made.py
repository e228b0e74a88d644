"""Costs and loads as the tests of the simulation need them."""

from collections.abc import Sequence

from tools.fleet_sim.fleet import Fleet
from tools.fleet_sim.sim_worker import StepCosts
from tools.fleet_sim.workloads import Ask, Session, Shape
from worker.wire.jobs import TokenId

COSTS = StepCosts(
    measured_on="nothing",
    parallel=4,
    cells=4_096,
    context_length=2_048,
    chunk=32,
    widest_step=128,
    itl_target_ms=150,
    prefix_cache_tokens=4_096,
    decode_ms=((1, 8.0), (4, 20.0)),
    prefill_ms=((1, 8.0), (32, 100.0), (128, 380.0)),
    decode_ms_per_1000_cells=0.5,
    prefill_ms_per_1000_cells=0.5,
    others_ms_per_1000_cells=0.1,
    save_ms_per_1000=6.0,
    load_ms_per_1000=5.0,
    request_ms=3.0,
)
CHATS = Shape(n_openings=3, n_opening_tokens=64, turns=(1, 5), text=(8, 64), answer=(4, 32), mean_pause_s=3.0)


def chats(*, n_requests: int = 120, rate: float = 2.0, seed: int = 1) -> list[Session]:
    return CHATS.sessions(seed=seed, n_requests=n_requests, rate=rate)


def ran(sessions: Sequence[Session], policy: str = "prefix", *, n_workers: int = 4, costs: StepCosts = COSTS) -> Fleet:
    fleet = Fleet([costs] * n_workers, policy, seed=7)
    fleet.run(sessions)
    return fleet


def alone(n_prompt: int, n_tokens: int, *, begins_s: float = 0.0, number: int = 0) -> Session:
    """One request; two of different numbers have nothing in common."""
    text = [TokenId(1 + number), *(TokenId(5_000 + place) for place in range(n_prompt - 1))]
    return Session(number, begins_s, [(0.0, Ask(number, text, TokenId(99), n_tokens))])
