"""One side's part of a round: the numbers of a server under load, or of llama-bench; or what went wrong."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.tools.bench.stand_in import OURS, stand_in
from tools.bench.answers import Ask
from tools.bench.dialects import Dialect, LlamaServer
from tools.bench.measures import at_least
from tools.bench.prompts import Prompts
from tools.bench.scenarios import SCENARIOS, SIZES, Scenario
from tools.bench.sides import LlamaBench, ServedSide, Turn, until_quiet

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
ASKS = [Ask(prompt="a b", n_tokens=5, phase=phase) for phase in range(3)]


def turn(manner: dict[str, Any], asks: Sequence[Ask] = ASKS, scenario: Scenario = SCENARIOS[0]) -> Turn:
    with stand_in(**manner) as server:
        side = ServedSide(server.as_server(), is_ours=True)
        return asyncio.run(side.turn(scenario, asks))


def side(*, is_ours: bool, is_speculating: bool = False, dialect: Dialect = OURS) -> ServedSide:
    with stand_in() as server:
        return ServedSide(server.as_server(dialect), is_ours, is_speculating)


# ── a server ─────────────────────────────────────────────────────────────────────────────────────


def test_a_turn_has_every_number_of_its_scenario() -> None:
    found = turn({})
    assert set(found.numbers) == {measure.name for measure in SCENARIOS[0].measures}
    assert found.numbers["first token"] > 0
    assert all(value >= 0 for value in found.numbers.values())
    assert (found.n_asked, found.n_failed, found.error) == (3, 0, "")


@pytest.mark.parametrize(
    ("manner", "said"),
    [
        ({"cut_after": 2}, "cut after 2 tokens"),
        ({"status": 500}, "500"),
        ({"n_fewer": 1}, "4 tokens came instead of 5"),
    ],
)
def test_a_turn_in_which_anything_failed_has_no_number(manner: dict[str, Any], said: str) -> None:
    found = turn(manner)
    assert dict(found.numbers) == {}
    assert (found.n_asked, found.n_failed) == (3, 3)
    assert said in found.error


def test_who_plays_what() -> None:
    ours, peer = side(is_ours=True), side(is_ours=False)
    speculating = side(is_ours=False, is_speculating=True, dialect=LlamaServer())
    plays = {name: [one.plays(scenario) for one in (ours, peer, speculating)] for name, scenario in BY_NAME.items()}
    for name in ("64-jobs", "small-among-5", "small-among-5-in-512", "small-among-8"):
        assert plays.pop(name) == [True, False, False]
    assert plays.pop("code-edit") == plays.pop("quoting") == plays.pop("agent-loop") == [True, True, True]
    assert set(map(tuple, plays.values())) == {(True, True, False)}


def test_beside_a_speculating_peer_there_are_other_bounds_or_none() -> None:
    quoting, sampled, agent_loop = (BY_NAME[name].own[0] for name in ("quoting", "sampled", "agent-loop"))
    assert side(is_ours=False).bound(quoting) == quoting.bound
    assert side(is_ours=False, is_speculating=True).bound(quoting) == at_least(1.0)
    assert side(is_ours=False, is_speculating=True).bound(sampled) is None
    assert side(is_ours=False).bound(agent_loop) == at_least(2.0)
    assert side(is_ours=False, is_speculating=True).bound(agent_loop) == at_least(1.3)


# ── llama-bench ──────────────────────────────────────────────────────────────────────────────────


def tool(folder: Path, script: str) -> LlamaBench:
    path = folder / "llama-bench"
    path.write_text(f"#!{sys.executable}\nimport sys\n{script}\n")
    path.chmod(0o755)
    return LlamaBench(path, folder / "m.gguf", 2)


def test_llama_bench_generates_as_a_stream_does(tmp_path: Path) -> None:
    bench = tool(
        tmp_path, "open(sys.argv[0] + '.log', 'w').write(' '.join(sys.argv[1:])); print('[{\"avg_ts\": 151.5}]')"
    )
    found = asyncio.run(bench.turn(SCENARIOS[0], [Ask(prompt="a", n_tokens=96)] * 3))
    assert dict(found.numbers) == {"decode": 151.5}
    asked = (tmp_path / "llama-bench.log").read_text()
    assert asked == f"-m {tmp_path / 'm.gguf'} -p 0 -d 85 -n 96 -t 2 -r 3 -o json"


def test_llama_bench_reads_as_long_a_prompt_as_the_others(tmp_path: Path) -> None:
    prompt = SIZES[-1]
    bench = tool(
        tmp_path, "open(sys.argv[0] + '.log', 'w').write(' '.join(sys.argv[1:])); print('[{\"avg_ts\": 60.5}]')"
    )
    found = asyncio.run(bench.turn(prompt, prompt.asks(Prompts(1))))
    assert dict(found.numbers) == {"prompt": 60.5}
    asked = (tmp_path / "llama-bench.log").read_text()
    assert asked == f"-m {tmp_path / 'm.gguf'} -p 512 -n 0 -t 2 -r 1 -o json"


def test_llama_bench_that_fails_is_a_failed_turn(tmp_path: Path) -> None:
    found = asyncio.run(tool(tmp_path, "sys.exit(4)").turn(SCENARIOS[0], ASKS))
    assert (dict(found.numbers), found.n_failed, found.error) == ({}, 1, "llama-bench ended with 4")


def test_llama_bench_plays_one_stream_and_the_prompt_and_has_its_own_bound() -> None:
    bench = LlamaBench(Path("b"), Path("m"), 2)
    assert [name for name, scenario in BY_NAME.items() if bench.plays(scenario)] == ["1-stream"]
    assert [scenario.name for scenario in SIZES if bench.plays(scenario)] == ["1-stream", "prompt"]
    bound = bench.bound(SCENARIOS[0].own[0])
    assert bound is not None
    assert (bound.sense, bound.limit) == ("at least", 0.97)


# ── quiet ────────────────────────────────────────────────────────────────────────────────────────


def test_quiet_comes_to_processes_that_rest() -> None:
    """This one waits; a process that is gone rests for ever."""
    asyncio.run(until_quiet([os.getpid(), 2**22 + 1]))
