"""A worker with `--mtp` over a real engine: it says what its model's head does, and every answer is the same."""

from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.test_hybrids import ask, serve
from tests.worker_process import WorkerProcess, eventually, text_of
from tools.made_architectures import KINDS, write_kind

pytestmark = pytest.mark.process

PROMPTS = [f"{'one two three four five ' * 8}{n}" for n in range(4)]


def lines(worker: WorkerProcess, event: str) -> list[Any]:
    return [line for line in worker.log if line["event"] == event]


@pytest.mark.parametrize("name", ["glm4moe-mtp", "qwen35-mtp"])
@pytest.mark.one_order
def test_a_worker_says_that_the_head_drafts_and_answers_as_without(name: str, tmp_path: Path) -> None:
    model = write_kind(tmp_path / "made.gguf", KINDS[name])
    with serve(model, "--prompt-lookup", "off") as plain, serve(model, "--prompt-lookup", "off", "--mtp") as drafting:
        off, on = (lines(worker.ready(), "model_load_complete") for worker in (plain, drafting))
        assert [line["mtp"] for line in (*off, *on)] == ["off: --mtp would load it", "on"]
        expected, answers = ([text_of(ask(worker, prompt, 60)) for prompt in PROMPTS] for worker in (plain, drafting))
        assert answers == expected
        head = drafting.health()["drafts"]["next_token_head"]
        assert head["off_because"] is None
        assert 0 < head["memory_bytes"] < drafting.health()["memory_bytes"]
        assert plain.health()["drafts"]["next_token_head"] == {
            "off_because": "--mtp would load it",
            "memory_bytes": 0,
        }
        drafting.engine.kill()
        drafting.wait_for("engine_restarted")
        eventually(lambda: drafting.get("/readyz").status_code == httpx2.codes.OK)
        assert text_of(ask(drafting, PROMPTS[0], 60)) == expected[0]
        assert drafting.health()["drafts"]["next_token_head"] == head


def test_a_flag_that_does_nothing_is_named_with_the_reason(tmp_path: Path) -> None:
    for name, reason in (("qwen3next-mtp", "llama.cpp keeps no snapshots"), ("qwen35", "the file has no next-token")):
        with serve(write_kind(tmp_path / f"{name}.gguf", KINDS[name]), "--mtp") as worker:
            [told] = lines(worker.ready(), "no_effect")
            assert told["setting"] == "--mtp"
            assert told["reason"].startswith(reason)
            assert text_of(ask(worker, PROMPTS[0]))
