"""A model with sliding windows over a real worker: nothing is computed twice, and answers are those of a job alone."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from tests.llama.random_models import SLIDING, Kind, write_random
from tests.worker_process import Event, WorkerProcess, text_of

pytestmark = pytest.mark.process

N_CELLS, N_SLOTS = 1024, 4
COMMON = "".join(Random(1).choices("abcdefghij ", k=200))
PROMPTS = [COMMON + "".join(Random(seed).choices("klmnopqrs ", k=200)) for seed in range(2, 2 + N_SLOTS)]


def serve(folder: Path, kind: Kind, *arguments: str) -> WorkerProcess:
    path = write_random(folder / "random.gguf", kind)
    sizes = ("--ctx-size", str(N_CELLS), "--parallel", str(N_SLOTS), "--threads", "1")
    return WorkerProcess("--model", str(path), "--port", "0", "--device", "cpu", *sizes, *arguments)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with serve(tmp_path_factory.mktemp("model"), SLIDING) as worker:
        yield worker.ready()


def ask(worker: WorkerProcess, prompt: str, max_tokens: int) -> list[Event]:
    return worker.run(prompt=prompt, max_tokens=max_tokens, ignore_eos=True)


def test_the_same_prompt_again_is_not_computed_again(worker: WorkerProcess) -> None:
    first, second = ask(worker, PROMPTS[0], 8), ask(worker, PROMPTS[0], 8)
    assert first[0]["cached_tokens"] == 0
    assert second[0]["cached_tokens"] == first[0]["prompt_tokens"] - 1 > 50 * 7
    assert text_of(second) == text_of(first)
    cache = worker.health()["prefix_cache"]
    assert (cache["off_because"], cache["limit_bytes"] > 0) == (None, True)


@pytest.mark.one_order
def test_jobs_that_share_and_pause_answer_as_without_company_and_cache(worker: WorkerProcess, tmp_path: Path) -> None:
    """Four jobs of 400 to 640 tokens over 1,024 cells, with 200 in common: they are paused and go on from copies."""
    with serve(tmp_path, SLIDING, "--swa-full", "off") as plain:
        plain.ready()
        expected = [text_of(ask(plain, prompt, 240)) for prompt in PROMPTS]
    before = worker.metrics()
    for _ in range(2):
        with ThreadPoolExecutor(N_SLOTS) as pool:
            answers = list(pool.map(lambda prompt: ask(worker, prompt, 240), PROMPTS))
        assert [text_of(answer) for answer in answers] == expected
    after = worker.metrics()
    assert after["worker_preemptions_total"] > before["worker_preemptions_total"]
    assert after["worker_prefix_tokens_reused_total"] > before["worker_prefix_tokens_reused_total"]


@pytest.mark.parametrize(
    ("kind", "flags", "reason"),
    [(SLIDING, ("--swa-full", "off"), "use --swa-full on")],
    ids=str,
)
def test_where_nothing_is_kept_health_and_the_log_say_why(
    tmp_path: Path, kind: Kind, flags: tuple[str, ...], reason: str
) -> None:
    with serve(tmp_path, kind, *flags) as worker:
        told = worker.listening().wait_for("prefix_cache_off")
        worker.wait_for("ready")
        assert reason in told["reason"]
        assert worker.health()["prefix_cache"] == {
            "tokens": 0,
            "bytes": 0,
            "limit_bytes": 0,
            "off_because": told["reason"],
            "restored_tokens": 0,
            "restored_bytes": 0,
            "checkpoint_bytes": 0,
            "checkpoint_stride": 0,
        }
        assert [ask(worker, PROMPTS[0], 4)[0]["cached_tokens"] for _ in range(2)] == [0, 0]
