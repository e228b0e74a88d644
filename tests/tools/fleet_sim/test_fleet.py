"""The laws of a simulated fleet: nothing is lost, time is what steps take, policies differ where they should."""

from collections.abc import Sequence

import pytest

from tools.command_line import exit_code
from tools.fleet_sim.__main__ import fleet_sim
from tools.fleet_sim.fleet import COLUMNS, Fleet
from tools.fleet_sim.policies import POLICIES
from tools.fleet_sim.sim_worker import StepCosts
from tools.fleet_sim.workloads import Ask, Session, Shape
from worker.errors import UsageError
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


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_ends_once_with_the_tokens_it_asked_for(policy: str) -> None:
    sessions = chats()
    fleet = ran(sessions, policy)
    asked = [ask for session in sessions for _, ask in session.asks]
    key = lambda ask: (ask.session, len(ask.prompt))  # noqa: E731
    assert sorted((one.ask for one in fleet.served), key=key) == sorted(asked, key=key)
    for one in fleet.served:
        assert one.sent_s < one.first_s <= one.ended_s
        assert one.n_tokens == one.ask.n_tokens
        assert one.n_cached < len(one.ask.prompt)
    assert all(worker.engine.is_idle and not worker.inbox for worker in fleet.workers)
    assert fleet.result() == ran(sessions, policy).result(), "the same seed gives the same result"


def test_a_lone_request_takes_what_its_steps_cost() -> None:
    """The first 128 tokens of a prompt of 200 are one step, and the rest is the next."""
    (served,) = ran([alone(200, 3)]).served
    prompt_s = COSTS.step_s("prefill", 128) + COSTS.step_s("prefill", 72, 72 * 128)
    assert served.first_s - served.sent_s == pytest.approx(COSTS.request_ms / 1000 + prompt_s)
    tokens_s = COSTS.step_s("decode", 1, 200) + COSTS.step_s("decode", 1, 201)
    assert served.ended_s - served.first_s == pytest.approx(tokens_s)


def test_a_prompt_that_begins_as_another_did_costs_its_rest() -> None:
    first, again = alone(128, 2), alone(160, 2, begins_s=60.0)
    _, served = ran([first, again], n_workers=1).served
    # The retained slot has the first prompt's cells; they cost nothing but the attention to them.
    assert served.n_cached == 128
    rest_s = COSTS.step_s("prefill", 32, 32 * 128, 32 * 1)
    assert served.first_s - served.sent_s == pytest.approx(COSTS.request_ms / 1000 + rest_s)


@pytest.mark.parametrize("policy", ["prefix", "session-hash"])
def test_who_looks_at_the_prefix_finds_more_cached_than_round_robin(policy: str) -> None:
    blind, seeing = (ran(chats(), name).cached_share() for name in ("round-robin", policy))
    assert seeing > blind


def test_a_session_that_no_worker_has_room_for_is_refused() -> None:
    with pytest.raises(UsageError, match="grows to 3005 tokens; the context of a worker with these costs has 2048"):
        ran([alone(3_000, 5)])


def test_the_command_prints_a_line_for_each_size_and_policy_or_one_for_a_mistake(
    capsys: pytest.CaptureFixture[str],
) -> None:
    load = ("--rate", "1", "--requests", "20", "--workload", "shared-prompts")
    assert exit_code(fleet_sim, "fleet_sim", ["--workers", "1", "--workers", "3", *load]) == 0
    heading, _, *lines = capsys.readouterr().out.splitlines()
    assert heading == f"| {' | '.join(name.removeprefix('>') for name in COLUMNS)} |"
    rows = [line.split(" | ")[:2] for line in lines]
    assert rows == [[f"| {policy}", size] for size in ("1", "3") for policy in POLICIES]
    assert exit_code(fleet_sim, "fleet_sim", ["--workers", "1", "--rate", "1", "--costs", "/nowhere.json"]) == 2
    assert capsys.readouterr().err.startswith("fleet_sim: error: --costs /nowhere.json: No such file")
