"""Models with recurrent state over a real worker: nothing is computed twice, and what is kept outlives it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.llama.random_models import HYBRID, RECURRENT, Kind, write_random
from tests.worker_process import Event, WorkerProcess, eventually, text_of
from tools.made_architectures import KINDS as KINDS_MADE
from tools.made_architectures import Kind as MadeKind
from tools.made_architectures import write_kind
from worker.engine.checkpoints import GRAIN

pytestmark = pytest.mark.process

KINDS = [RECURRENT, HYBRID]
N_SLOTS = 4
COMMON = "".join(Random(1).choices("abcdefghij ", k=400))
PROMPTS = [COMMON + "".join(Random(seed).choices("klmnopqrs ", k=200)) for seed in range(2, 8)]


def serve(model: Path, *arguments: str) -> WorkerProcess:
    sizes = ("--ctx-size", "4096", "--parallel", str(N_SLOTS), "--threads", "1")
    return WorkerProcess("--model", str(model), "--port", "0", "--device", "cpu", *sizes, *arguments)


@pytest.fixture(scope="module", params=KINDS, ids=str)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kind: Kind = request.param
    return write_random(tmp_path_factory.mktemp("model") / "random.gguf", kind)


@pytest.fixture
def worker(model: Path) -> Iterator[WorkerProcess]:
    with serve(model) as worker:
        yield worker.ready()


def ask(worker: WorkerProcess, prompt: str, max_tokens: int = 8) -> list[Event]:
    return worker.run(prompt=prompt, max_tokens=max_tokens, ignore_eos=True)


def n_cached(worker: WorkerProcess, prompt: str) -> int:
    n_found: int = ask(worker, prompt, 1)[0]["cached_tokens"]
    return n_found


def test_a_prompt_again_and_one_that_goes_on_are_not_computed_again(worker: WorkerProcess) -> None:
    first = ask(worker, PROMPTS[0])
    assert first[0]["cached_tokens"] == 0
    again = ask(worker, PROMPTS[0])
    assert first[0]["prompt_tokens"] - 8 <= again[0]["cached_tokens"]
    assert text_of(again) == text_of(first)
    assert n_cached(worker, PROMPTS[0] + PROMPTS[1]) >= first[0]["prompt_tokens"] - 8
    cache = worker.health()["prefix_cache"]
    assert cache["off_because"] is None
    assert 0 < cache["checkpoint_bytes"] < cache["bytes"] <= cache["limit_bytes"]
    assert cache["checkpoint_stride"] >= 256


def test_prompts_that_come_together_share_their_beginning(worker: WorkerProcess) -> None:
    """All but the first, and one that came with it, begin at a checkpoint. One more begins where all of them part."""
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        answers = list(pool.map(lambda prompt: ask(worker, prompt, 300), PROMPTS))
    stride = worker.health()["prefix_cache"]["checkpoint_stride"]
    assert sum(answer[0]["cached_tokens"] >= max(len(COMMON) // stride * stride, 1) for answer in answers) >= N_SLOTS
    assert all(answer[-1]["tokens_sampled"] == 300 for answer in answers)
    assert n_cached(worker, COMMON + "tu") > len(COMMON) - GRAIN


def test_what_was_kept_outlives_the_engine(worker: WorkerProcess) -> None:
    n_prompt = ask(worker, PROMPTS[0])[0]["prompt_tokens"]
    expected = text_of(ask(worker, PROMPTS[0], 20))
    n_bytes = worker.health()["prefix_cache"]["bytes"]
    worker.engine.kill()
    worker.wait_for("engine_restarted")
    told = worker.wait_for("prefix_cache_restored")
    eventually(lambda: worker.get("/readyz").status_code == 200)
    assert 0 < told["bytes"] <= n_bytes
    again = ask(worker, PROMPTS[0], 20)
    assert again[0]["cached_tokens"] >= n_prompt - 8
    assert text_of(again) == expected


def test_and_the_worker_with_a_directory(model: Path, tmp_path: Path) -> None:
    folder = ("--prefix-cache-dir", str(tmp_path / "cache"))
    with serve(model, *folder) as first:
        n_prompt = ask(first.ready(), PROMPTS[0])[0]["prompt_tokens"]
        expected = text_of(ask(first, PROMPTS[0], 20))
        first.terminate()
        assert first.exit_code() == 0
    with serve(model, *folder) as second:
        again = ask(second.ready(), PROMPTS[0], 20)
        assert again[0]["cached_tokens"] >= n_prompt - 8
        assert text_of(again) == expected
        assert not [line for line in second.log if line["event"] == "prefix_cache_dropped"]


def test_with_deterministic_a_cached_prompt_has_the_bits_of_one_from_zero(model: Path) -> None:
    flags = ("--deterministic", "--ctx-size", "2048")
    requests = [{"prompt": prompt, "max_tokens": 24, "logprobs": 3, "ignore_eos": True} for prompt in PROMPTS[:3]]
    with serve(model, *flags) as kept, serve(model, *flags, "--prefix-cache-mb", "0") as fresh:
        for worker in (kept.ready(), fresh.ready()):
            assert worker.health()["deterministic"]
        for request in [*requests, *requests]:
            found, expected = ([{**each, "ts": None} for each in one.run(**request)] for one in (kept, fresh))
            assert [each for each in found if each["type"] == "token"] == [
                each for each in expected if each["type"] == "token"
            ]
        assert n_cached(kept, PROMPTS[0]) >= len(COMMON)


# ── drafts ───────────────────────────────────────────────────────────────────────────────────────

REPEATS = "one two three four five six seven " * 12
DRAFTING = [KINDS_MADE[name] for name in ("lfm2", "qwen35")]


def told(model: Path, *flags: str) -> tuple[list[str], dict[str, Any], int]:
    """The answers of a worker, the health that it reports, and how many draft tokens it has accepted."""
    with serve(model, *flags) as worker:
        worker.ready()
        requests = [
            {"prompt": f"{i} {REPEATS}", "max_tokens": 160, "ignore_eos": True, "temperature": temperature, "seed": i}
            for i in range(3)
            for temperature in (0, 0.4)
        ]
        answers = [text_of(worker.run(**request)) for request in [*requests, *requests]]
        with ThreadPoolExecutor(len(requests)) as pool:
            answers += pool.map(lambda request: text_of(worker.run(**request)), requests)
        return answers, worker.health(), int(worker.metrics()["worker_draft_tokens_accepted_total"])


@pytest.mark.parametrize("kind", DRAFTING, ids=str)
def test_drafts_change_no_answer(kind: MadeKind, tmp_path: Path) -> None:
    """They come from texts and from a draft model, which is the model itself here."""
    model = write_kind(tmp_path / "made.gguf", kind)
    expected, health, n_accepted = told(model, "--prompt-lookup", "off")
    assert health["drafts"] == {
        "off_because": "--prompt-lookup is off, and neither --draft-model nor --mtp drafts",
        "snapshots": 0,
        "snapshot_bytes": 0,
        "next_token_head": None,
    }
    assert n_accepted == 0
    for flags in ((), ("--draft-model", str(model), "--prompt-lookup", "off")):
        answers, health, n_accepted = told(model, *flags)
        assert health["drafts"]["off_because"] is None
        assert health["drafts"]["snapshots"] > 0
        assert answers == expected
        assert flags or n_accepted > 0, "a draft model that takes as long as the model itself need not pay"


def test_a_model_without_snapshots_says_why_it_drafts_nothing(tmp_path: Path) -> None:
    model = write_kind(tmp_path / "made.gguf", KINDS_MADE["mamba2"])
    why = "llama.cpp keeps no snapshots of mamba2's recurrent state, and without them it cannot be cut"
    with serve(model) as worker:
        assert worker.ready().health()["drafts"]["off_because"] == why
        assert [line["reason"] for line in worker.log if line["event"] == "drafts_off"] == [why]
    with serve(model, "--draft-model", str(model)) as worker:
        assert worker.exit_code() == 1
        assert any(why in line.get("message", "") for line in worker.log)
