"""A whole run on servers that are started, play and are gone: every kind of scenario and side, the overload."""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tools.bench.made_report import CIRCUMSTANCES
from tests.tools.bench.stand_in import DIALECTS, PROGRAM
from tools.bench.scenarios import SCENARIOS
from tools.bench.servers import Plan
from tools.bench.session import Found, Wanted, groups_of, measure
from tools.bench.sides import LlamaBench

pytestmark = pytest.mark.process

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
OURS = Plan(name="llorch-worker", dialect=DIALECTS[0], program=PROGRAM)
PEER = Plan(name="llama-server", dialect=DIALECTS[1], program=PROGRAM)


def wanted(folder: Path, *names: str) -> Wanted:
    tool = folder / "llama-bench"
    tool.write_text(f"#!{sys.executable}\nprint('[{{\"avg_ts\": 151.5}}]')\n")
    tool.chmod(0o755)
    return Wanted(
        sides=[
            ("ours", OURS),
            ("ours without drafts", OURS.named("llorch-worker-no-drafts")),
            ("judged", PEER),
            ("beside", PEER.named("llama-server-our-flags")),
            ("speculating", PEER.named("llama-server-ngram")),
        ],
        llama_bench=LlamaBench(tool, folder / "m.gguf", 2),
        batched_bench=None,
        scenarios=[BY_NAME[name] for name in names],
        n_refusals=20,
        n_rounds=1,
        seed=1,
        logs=folder,
        environment=os.environ,
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return asyncio.run(
        measure(
            wanted(tmp_path_factory.mktemp("run"), "1-stream-no-drafts", "1-stream", "64-jobs", "quoting"),
            lambda *_: None,
        )
    )


def test_each_scenario_has_its_sides_in_the_order_asked_for(found: Found) -> None:
    report = found.report(CIRCUMSTANCES)
    own = [(line.scenario, line.peer) for line in report.lines if line.is_own]
    assert own == [
        ("1-stream-no-drafts", "llama-server"),
        ("1-stream-no-drafts", "llama-server-our-flags"),
        ("1-stream-no-drafts", "llama-bench"),
        ("1-stream", "llama-server"),
        ("64-jobs", None),
        ("quoting", "llama-server"),
        ("quoting", "llama-server-ngram"),
    ]
    assert report.failures == []


def test_every_server_that_was_started_has_its_memory(found: Found) -> None:
    """The servers of the first scenarios count; servers that speculate come later."""
    names = ["llorch-worker", "llorch-worker-no-drafts", "llama-server", "llama-server-our-flags"]
    assert [one.process for one in found.resident] == names
    assert all(one.memory.resident_bytes > one.memory.anonymous_bytes > 1_000_000 for one in found.resident)


def test_the_overload_has_a_worker_with_few_places(found: Found) -> None:
    assert found.overload is not None
    assert (found.overload.n_places, found.overload.n_refusals) == (8, 20)
    assert found.overload.n_answered + found.overload.n_refused == found.overload.n_burst == 32


def test_versions_are_the_peers_own_words(found: Found) -> None:
    names = ("llama-server", "llama-server-our-flags", "llama-server-ngram")
    assert found.versions == dict.fromkeys(names, "b1-stand-in")


def test_every_round_has_servers_of_its_own_and_none_that_play_nothing(tmp_path: Path) -> None:
    found = asyncio.run(measure(replace(wanted(tmp_path, "1-stream"), n_refusals=0, n_rounds=2), lambda *_: None))
    logs = [path.name.rsplit("-", 1)[0] for path in tmp_path.glob("*.log")]
    assert sorted(set(logs)) == ["llama-server", "llorch-worker"]
    (played,) = found.played
    assert {name: len(turns) for name, turns in played.turns.items()} == {"llorch-worker": 2, "llama-server": 2}


def test_scenarios_for_which_peers_speculate_have_servers_of_their_own() -> None:
    usual, speculative = groups_of(SCENARIOS)
    assert [scenario.name for scenario in speculative] == ["code-edit", "quoting", "agent-loop"]
    assert {scenario.name for scenario in (*usual, *speculative)} == {
        scenario.name for scenario in SCENARIOS if not scenario.worker_flags
    }
    assert groups_of(usual) == [usual]


def test_without_the_scenarios_of_all_sides_no_peer_is_started(tmp_path: Path) -> None:
    found = asyncio.run(measure(replace(wanted(tmp_path, "64-jobs"), n_refusals=0), lambda *_: None))
    (log,) = tmp_path.glob("*.log")
    assert log.name.startswith("llorch-worker-")
    assert (found.resident, found.overload, found.versions) == ((), None, {})


@pytest.mark.parametrize("scenario", ["1-stream", "1-stream-no-drafts", "64-jobs"])
@pytest.mark.parametrize("vram_bytes", [0, 1])
def test_a_worker_on_a_gpu_is_known_whichever_scenarios_it_plays(
    tmp_path: Path, scenario: str, vram_bytes: int
) -> None:
    asked = wanted(tmp_path, scenario)
    on_it = [(part, plan.with_flags(["--vram-bytes", str(vram_bytes)])) for part, plan in asked.sides if "ours" in part]
    found = asyncio.run(measure(replace(asked, sides=on_it, n_refusals=0), lambda *_: None))
    assert found.is_on_gpu == (vram_bytes > 0)
