"""One side's part of a round: the numbers of a server under load, or of llama-bench; or what went wrong."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tools.bench.stand_in import StandIn
from tools.bench.measures import Ask, at_least, stream_rate
from tools.bench.scenarios import LLAMA_BATCHED_BENCH, LLAMA_BENCH, SCENARIOS
from tools.bench.sides import Part, Tool, Turn, plays

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
ASKS = [Ask(prompt="a b", n_tokens=5, phase=phase) for phase in range(3)]


def turn(manner: dict[str, Any]) -> Turn:
    with StandIn(**manner) as server:
        return asyncio.run(server.as_side().turn(SCENARIOS[0], ASKS))


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


WITHOUT_DRAFTS = {"late-prompt", "late-prompt-real", *(name for name in BY_NAME if name.endswith("-no-drafts"))}


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ("judged", set(BY_NAME)),
        ("speculating", {"code-edit", "agent-loop"}),
        ("ours without drafts", WITHOUT_DRAFTS),
        ("ours", set(BY_NAME) - WITHOUT_DRAFTS),
    ],
)
def test_who_plays_what(part: Part, names: set[str]) -> None:
    assert {name for name, scenario in BY_NAME.items() if plays(part, scenario)} == names


def test_a_peer_has_the_bound_of_its_part() -> None:
    both = stream_rate(at_least(1.6), at_least(1.0))
    parts: tuple[Part, ...] = ("judged", "speculating", "beside", "ours")
    with StandIn() as server:
        bounds = [server.as_side(part).bound(both) for part in parts]
    assert bounds == [at_least(1.6), at_least(1.0), None, None]


def tool(folder: Path, name: str, script: str) -> Tool:
    path = folder / name
    log = "open(sys.argv[0] + '.log', 'w').write(' '.join(sys.argv[1:]))"
    path.write_text(f"#!{sys.executable}\nimport sys\n{log}\n{script}\n")
    path.chmod(0o755)
    return Tool(name, path, folder / "m.gguf", 4096, 2)


@pytest.mark.parametrize(
    ("name", "said", "numbers", "flags"),
    [
        (LLAMA_BENCH, '{"avg_ts": 151.5}', {"decode": 151.5}, "-p 0 -d 85 -n 96 -r 16 -o jsonl"),
        (
            *(LLAMA_BATCHED_BENCH, '{"pp": 85, "tg": 96, "pl": 16, "t": 2.0, "speed": 1448.0}', {"all tokens": 768.0}),
            "-npp 85 -ntg 96 -npl 16 -kvu -c 4096 --output-format jsonl",
        ),
    ],
)
def test_a_benchmark_generates_as_a_scenario_does(
    tmp_path: Path, name: str, said: str, numbers: dict[str, float], flags: str
) -> None:
    scenario = next(one for one in SCENARIOS if one.tool == name)
    bench = tool(tmp_path, name, f"print(); print({said!r}); print()")
    found = asyncio.run(bench.turn(scenario, [Ask(prompt="a", n_tokens=96)] * 16))
    assert dict(found.numbers) == numbers, "those of the answers, by the time of all"
    assert (tmp_path / f"{name}.log").read_text() == f"-m {tmp_path / 'm.gguf'} -t 2 {flags}"
    assert (bench.part, bench.bound(scenario.own[0])) == ("beside", None)


@pytest.mark.parametrize(("script", "status"), [("sys.exit(4)", 4), ("print('no numbers')", 0)])
def test_a_benchmark_that_fails_is_a_failed_turn(tmp_path: Path, script: str, status: int) -> None:
    found = asyncio.run(tool(tmp_path, LLAMA_BENCH, script).turn(SCENARIOS[0], ASKS))
    error = f"llama-bench ended with {status} and 0 lines of numbers"
    assert (dict(found.numbers), found.n_failed, found.error) == ({}, 1, error)
