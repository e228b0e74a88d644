"""Models with recurrent state, sliding windows or next-token heads over a real worker: nothing is computed twice, what
is kept outlives it, and every answer is that of a job alone.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.llama.random_models import HYBRID, RECURRENT, SLIDING, Kind, write_random
from tests.worker_process import Event, WorkerProcess, text_of
from tools.made_architectures import HYBRIDS as HYBRIDS_MADE
from tools.made_architectures import KINDS as KINDS_MADE
from tools.made_architectures import RECURRENT as RECURRENT_MADE
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


def lines(worker: WorkerProcess, event: str) -> list[Any]:
    return [line for line in worker.log if line["event"] == event]


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
    told = worker.revive("prefix_cache_restored")
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
        assert not lines(second, "prefix_cache_dropped")


def test_with_deterministic_a_cached_prompt_has_the_bits_of_one_from_zero(model: Path) -> None:
    flags = ("--deterministic", "--ctx-size", "2048")
    requests = [{"prompt": prompt, "max_tokens": 24, "logprobs": 3, "ignore_eos": True} for prompt in PROMPTS[:3]]
    with serve(model, *flags) as kept, serve(model, *flags, "--prefix-cache-mb", "0") as fresh:
        for worker in (kept.ready(), fresh.ready()):
            assert worker.health()["deterministic"]
        for request in [*requests, *requests]:
            found, expected = (
                [{**each, "ts": None} for each in one.run(**request) if each["type"] == "token"]
                for one in (kept, fresh)
            )
            assert found == expected
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
        assert [line["reason"] for line in lines(worker, "drafts_off")] == [why]
    with serve(model, "--draft-model", str(model)) as worker:
        assert worker.exit_code() == 1
        assert any(why in line.get("message", "") for line in worker.log)


NOT_REPEATABLE = "kimi-linear"
"""llama.cpp has no flash attention for its latent cells, so that sums depend on the number of cells."""


@pytest.mark.parametrize("kind", [*RECURRENT_MADE, *HYBRIDS_MADE], ids=str)
def test_every_kind_answers_alike_and_otherwise_after_another_first_word(kind: MadeKind, tmp_path: Path) -> None:
    flags = ("--itl-target-ms", "0") if kind.name == NOT_REPEATABLE else ("--deterministic",)
    sizes = ("--ctx-size", "1024", "--parallel", "2")
    with serve(write_kind(tmp_path / "made.gguf", kind), *sizes, *flags) as worker:
        worker.ready()
        conversations = [[{"role": "user", "content": f"{letter} {'one two three ' * 12}"}] for letter in "aab"]
        first, again, other = (worker.text(messages=each, max_tokens=48, ignore_eos=True) for each in conversations)
        assert first == again not in ("", other)


# ── sliding windows ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WorkerProcess, WorkerProcess]]:
    """A worker with copies of the windows, and one without."""
    model = write_random(tmp_path_factory.mktemp("model") / "random.gguf", SLIDING)
    with serve(model, "--ctx-size", "1536") as worker, serve(model, "--swa-full", "off") as plain:
        yield worker.ready(), plain.ready()


def test_a_prompt_in_sliding_windows_is_not_computed_again_or_health_and_the_log_say_why(
    windows: tuple[WorkerProcess, WorkerProcess],
) -> None:
    first, second = (ask(windows[0], PROMPTS[0]) for _ in range(2))
    assert (first[0]["cached_tokens"], second[0]["cached_tokens"]) == (0, first[0]["prompt_tokens"] - 1)
    assert text_of(second) == text_of(first)
    assert windows[0].health()["prefix_cache"]["off_because"] is None
    (told,) = lines(windows[1], "prefix_cache_off")
    assert "use --swa-full on" in told["reason"]
    kept = windows[1].health()["prefix_cache"]
    assert (kept.pop("off_because"), {*kept.values()}) == (told["reason"], {0})
    assert [ask(windows[1], PROMPTS[0], 4)[0]["cached_tokens"] for _ in range(2)] == [0, 0]


@pytest.mark.one_order
def test_jobs_that_share_and_pause_answer_as_without_company_and_cache(
    windows: tuple[WorkerProcess, WorkerProcess],
) -> None:
    """Four jobs of 840 tokens over 1,536 cells, with 400 in common: they are paused and go on from copies."""
    worker, plain = windows
    expected = [text_of(ask(plain, prompt, 240)) for prompt in PROMPTS[:N_SLOTS]]
    before = worker.metrics()
    for _ in range(2):
        with ThreadPoolExecutor(N_SLOTS) as pool:
            answers = list(pool.map(lambda prompt: ask(worker, prompt, 240), PROMPTS[:N_SLOTS]))
        assert [text_of(answer) for answer in answers] == expected
    after = worker.metrics()
    for series in ("worker_preemptions_total", "worker_prefix_tokens_reused_total"):
        assert after[series] > before[series]


# ── next-token heads ─────────────────────────────────────────────────────────────────────────────

COUNTS = [f"{'one two three four five ' * 8}{n}" for n in range(4)]


@pytest.mark.parametrize("name", ["glm4moe-mtp", "qwen35-mtp"])
@pytest.mark.one_order
def test_a_worker_says_that_the_head_drafts_and_answers_as_without(name: str, tmp_path: Path) -> None:
    model = write_kind(tmp_path / "made.gguf", KINDS_MADE[name])
    with serve(model, "--prompt-lookup", "off") as plain, serve(model, "--prompt-lookup", "off", "--mtp") as drafting:
        off, on = (lines(worker.ready(), "model_load_complete") for worker in (plain, drafting))
        assert [line["mtp"] for line in (*off, *on)] == ["off: --mtp would load it", "on"]
        expected, answers = ([text_of(ask(worker, prompt, 60)) for prompt in COUNTS] for worker in (plain, drafting))
        assert answers == expected
        head = drafting.health()["drafts"]["next_token_head"]
        assert head["off_because"] is None
        assert 0 < head["memory_bytes"] < drafting.health()["memory_bytes"]
        none = {"off_because": "--mtp would load it", "memory_bytes": 0}
        assert plain.health()["drafts"]["next_token_head"] == none
        drafting.revive()
        assert text_of(ask(drafting, COUNTS[0], 60)) == expected[0]
        assert drafting.health()["drafts"]["next_token_head"] == head


def test_a_flag_that_does_nothing_is_named_with_the_reason(tmp_path: Path) -> None:
    for name, reason in (("qwen3next-mtp", "llama.cpp keeps no snapshots"), ("qwen35", "the file has no next-token")):
        with serve(write_kind(tmp_path / f"{name}.gguf", KINDS_MADE[name]), "--mtp") as worker:
            [told] = lines(worker.ready(), "no_effect")
            assert told["setting"] == "--mtp"
            assert told["reason"].startswith(reason)
            assert text_of(ask(worker, COUNTS[0]))
