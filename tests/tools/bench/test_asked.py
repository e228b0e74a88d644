"""The options decide which sides are started with which flags, and what is asked of a model of a size."""

from dataclasses import replace
from pathlib import Path

import pytest

from tools.bench.asked import LARGE_BYTES, ROUNDS, ROUNDS_OF_LARGE, Asked
from tools.bench.dialects import LlamaServer
from tools.bench.scenarios import CONVERSATIONS, LARGE, ON_GPU, SCENARIOS
from worker.errors import UsageError


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    model, binary = tmp_path / "m.gguf", tmp_path / "llama-server"
    for path in (model, binary):
        path.write_bytes(b"")
    return Asked(
        model=str(model),
        models_dir=tmp_path,
        ctx_size=16_384,
        parallel=16,
        threads=2,
        worker_flags=["--itl-target-ms", "0"],
        peer_binary=binary,
        our_flags_binary=binary,
    )


def large(asked: Asked) -> Asked:
    with asked.file.open("ab") as file:
        file.truncate(LARGE_BYTES + 1)  # the file takes no room on the disk
    return asked


@pytest.mark.parametrize(
    ("flags", "is_for_gpu"),
    [
        ([], False),
        (["--device", "cpu"], False),
        (["--device", "cuda"], True),
        (["--mlock", "--device", "vulkan:1"], True),
    ],
)
def test_on_a_gpu_any_model_is_asked_everything_and_the_peer_is_started_without_its_cache_too(
    asked: Asked, flags: list[str], *, is_for_gpu: bool
) -> None:
    wanted = large(replace(asked, worker_flags=flags)).wanted(1, Path())
    assert {scenario.name for scenario in wanted.scenarios} == {one.name for one in (ON_GPU if is_for_gpu else LARGE)}
    uncached = [plan.flags for part, plan in wanted.sides if plan.name == "llama-server-no-cache" and part == "judged"]
    assert [flags[-2:] for flags in uncached] == ([("--cache-ram", "0")] if is_for_gpu else [])


def test_every_side_has_a_name_and_our_two_workers_differ_by_their_drafts_alone(asked: Asked) -> None:
    sides = asked.wanted(1, Path()).sides
    assert [(part, plan.name) for part, plan in sides] == [
        ("ours", "llorch-worker"),
        ("ours without drafts", "llorch-worker-no-drafts"),
        ("judged", "llama-server"),
        ("beside", "llama-server-our-flags"),
        ("speculating", "llama-server-ngram"),
        ("speculating", "llama-server-ngram-simple"),
    ]
    (_, ours), (_, without), *peers = sides
    assert without.flags == (*ours.flags, "--prompt-lookup", "off")
    assert ours.flags[-2:] == ("--itl-target-ms", "0")
    for _, plan in peers:
        assert isinstance(plan.dialect, LlamaServer)
        assert plan.flags[plan.flags.index("-t") + 1] == "2"
        assert plan.flags[plan.flags.index("-np") + 1] == "16"


def test_a_small_model_is_asked_everything_and_a_large_one_less_and_less_often(asked: Asked) -> None:
    wanted = asked.wanted(1, Path())
    assert (wanted.scenarios, wanted.circumstances.n_rounds) == (list(SCENARIOS), ROUNDS)
    names = tuple(scenario.name for scenario in CONVERSATIONS)
    assert replace(asked, scenarios=names).wanted(1, Path()).scenarios == list(CONVERSATIONS)
    wanted = large(asked).wanted(1, Path())
    assert (wanted.scenarios, wanted.circumstances.n_rounds) == (list(LARGE), ROUNDS_OF_LARGE)
    with pytest.raises(UsageError, match=r"--scenario code-edit is not asked of a model as large as m\.gguf"):
        replace(asked, scenarios=("code-edit",)).wanted(1, Path())


def test_at_a_url_what_needs_a_worker_without_drafts_is_left_out(asked: Asked) -> None:
    there = replace(asked, url="http://127.0.0.1:1", worker_flags=[], peer_binary=None, our_flags_binary=None)
    wanted = there.wanted(1, Path())
    assert [part for part, _ in wanted.sides] == ["ours"]
    assert {scenario.name for scenario in wanted.scenarios} | set(there.left_out) == {one.name for one in SCENARIOS}
    assert all(scenario.has_drafts for scenario in wanted.scenarios)
