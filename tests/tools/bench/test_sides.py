"""One side's part of a round: the numbers of a server under load, or of llama-bench; or what went wrong."""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tools.bench.stand_in import stand_in
from tools.bench.answers import Ask
from tools.bench.measures import at_least, stream_rate
from tools.bench.scenarios import LARGE, ON_GPU, SCENARIOS, Scenario
from tools.bench.sides import LlamaBatchedBench, LlamaBench, Part, ServedSide, Turn, plays, until_quiet

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
ASKS = [Ask(prompt="a b", n_tokens=5, phase=phase) for phase in range(3)]


def turn(manner: dict[str, Any], asks: Sequence[Ask] = ASKS, scenario: Scenario = SCENARIOS[0]) -> Turn:
    with stand_in(**manner) as server:
        side = ServedSide(server.as_server(), "ours")
        return asyncio.run(side.turn(scenario, asks))


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


def test_a_turn_has_what_a_second_of_the_processors_yielded(tmp_path: Path) -> None:
    """The stand-in counts a prompt's words. It is this process, so that its processor time is not nothing."""
    with stand_in() as server:
        known = replace(server.as_server(), pids={"server": os.getpid()})
        found = asyncio.run(ServedSide(known, "ours").turn(SCENARIOS[0], ASKS * 20))
    assert 10 < found.per_cpu_s < 1_000_000
    assert turn({}).per_cpu_s == 0.0


PEERS: tuple[Part, ...] = ("judged", "beside", "speculating")
WITHOUT_DRAFTS = {"late-prompt", "late-prompt-real", *(name for name in BY_NAME if name.endswith("-no-drafts"))}


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ("judged", {name for name, one in BY_NAME.items() if not one.worker_flags}),
        ("speculating", {"code-edit", "quoting", "agent-loop"}),
        ("ours without drafts", WITHOUT_DRAFTS),
        ("ours", set(BY_NAME) - WITHOUT_DRAFTS),
    ],
)
def test_who_plays_what(part: Part, names: set[str]) -> None:
    assert {name for name, scenario in BY_NAME.items() if plays(part, scenario)} == names


@pytest.mark.parametrize("scenario", [*SCENARIOS, *LARGE], ids=lambda scenario: scenario.name)
def test_a_scenario_is_played_by_one_of_our_workers_and_by_no_peer_but_the_judged_one_without_it(
    scenario: Scenario,
) -> None:
    assert plays("ours", scenario) != plays("ours without drafts", scenario)
    if any(plays(peer, scenario) for peer in PEERS):
        assert plays("judged", scenario)
    if scenario.worker_flags:
        assert not any(plays(peer, scenario) for peer in PEERS)


def test_a_peer_has_the_bound_of_its_part() -> None:
    both = stream_rate(at_least(1.6), at_least(1.0))
    bounds = {}
    for part in ("judged", "speculating", "beside", "ours"):
        with stand_in() as server:
            bounds[part] = ServedSide(server.as_server(), part).bound(both)
    assert bounds == {"judged": at_least(1.6), "speculating": at_least(1.0), "beside": None, "ours": None}


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


def test_llama_bench_that_fails_is_a_failed_turn(tmp_path: Path) -> None:
    found = asyncio.run(tool(tmp_path, "sys.exit(4)").turn(SCENARIOS[0], ASKS))
    assert (dict(found.numbers), found.n_failed, found.error) == ({}, 1, "llama-bench ended with 4")


def test_llama_bench_plays_one_stream_without_drafts_and_the_prompt_and_is_only_shown() -> None:
    bench = LlamaBench(Path("b"), Path("m"), 2)
    for scenarios in (SCENARIOS, LARGE):
        assert [one.name for one in scenarios if bench.plays(one)] == ["1-stream-no-drafts", "1-stream-real-no-drafts"]
    assert (bench.part, bench.bound(SCENARIOS[0].own[0])) == ("beside", None)


# ── llama-batched-bench ──────────────────────────────────────────────────────────────────────────


def batched(folder: Path, script: str) -> LlamaBatchedBench:
    path = tool(folder, script).binary
    return LlamaBatchedBench(path, folder / "m.gguf", 4096, 2)


def test_llama_batched_bench_generates_as_all_streams_do(tmp_path: Path) -> None:
    line = '{"pp": 85, "tg": 96, "pl": 16, "t": 2.0, "speed": 1448.0}'
    bench = batched(
        tmp_path, f"open(sys.argv[0] + '.log', 'w').write(' '.join(sys.argv[1:])); print(); print('{line}'); print()"
    )
    found = asyncio.run(bench.turn(SCENARIOS[3], [Ask(prompt="a", n_tokens=96)] * 16))
    assert dict(found.numbers) == {"all tokens": 768.0}, "those of the answers, by the time of all"
    asked = (tmp_path / "llama-bench.log").read_text()
    assert asked == f"-m {tmp_path / 'm.gguf'} -npp 85 -ntg 96 -npl 16 -kvu -c 4096 -t 2 --output-format jsonl"


@pytest.mark.parametrize(("script", "status"), [("sys.exit(4)", 4), ("print('no numbers')", 0)])
def test_llama_batched_bench_that_fails_is_a_failed_turn(tmp_path: Path, script: str, status: int) -> None:
    found = asyncio.run(batched(tmp_path, script).turn(SCENARIOS[3], ASKS))
    error = f"llama-batched-bench ended with {status} and 0 lines of numbers"
    assert (dict(found.numbers), found.n_failed, found.error) == ({}, 1, error)


def test_llama_batched_bench_plays_streams_at_once_without_drafts_and_is_only_shown() -> None:
    bench = LlamaBatchedBench(Path("b"), Path("m"), 4096, 2)
    played = [scenario.name for scenario in ON_GPU if bench.plays(scenario)]
    assert played == [
        *(f"{n}-streams-no-drafts" for n in (4, 8, 16)),
        "8-streams-real-no-drafts",
        "32-streams-no-drafts",
    ]
    assert (bench.part, bench.bound(SCENARIOS[3].own[0])) == ("beside", None)


# ── quiet ────────────────────────────────────────────────────────────────────────────────────────


def test_quiet_comes_to_processes_that_rest() -> None:
    """This one waits; a process that is gone rests for ever."""
    asyncio.run(until_quiet([os.getpid(), 2**22 + 1]))
