"""A worker over models with recurrent state: it answers conversations, and the same again."""

from pathlib import Path

import pytest

from tests.worker_process import WorkerProcess, text_of
from tools.made_architectures import HYBRIDS, RECURRENT, Kind, write_kind

pytestmark = pytest.mark.process

NOT_REPEATABLE = "kimi-linear"
"""llama.cpp has no flash attention for its latent cells, so that sums depend on the number of cells."""


@pytest.mark.parametrize("kind", [*RECURRENT, *HYBRIDS], ids=str)
def test_it_answers_alike_and_otherwise_after_another_first_word(kind: Kind, tmp_path: Path) -> None:
    path = write_kind(tmp_path / "made.gguf", kind)
    sizes = ("--ctx-size", "1024", "--parallel", "2", "--threads", "1")
    flags = ("--itl-target-ms", "0") if kind.name == NOT_REPEATABLE else ("--deterministic",)
    with WorkerProcess("--model", str(path), "--port", "0", "--device", "cpu", *sizes, *flags) as worker:
        worker.ready()
        first, again = (asked(worker, "a") for _ in range(2))
        assert first == again != ""
        assert asked(worker, "b") != first


def asked(worker: WorkerProcess, letter: str) -> str:
    messages = [{"role": "user", "content": f"{letter} {'one two three ' * 12}"}]
    return text_of(worker.run(messages=messages, max_tokens=48, ignore_eos=True))
