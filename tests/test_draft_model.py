"""A draft model changes no token, on two layers of the default model with their own Q4_0 as the draft model: over the
engine and llama.cpp as the engine process puts them together.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parity.f32_copy import rewrite
from parity.llama.quantise import quantise
from tests.llama.tiny import write_tiny
from tests.queued import queued
from tests.real_engine import SLOW_S, Told, answered, config_of, served, tokens_of
from tests.server.front.rehearsal import CHEAP_ROWS
from tests.shared_files import made_once, shared_folder
from tests.worker_process import PATIENCE_S, own_environment, serve_default
from worker.engine.backend import LoadedDraft, LoadedModel, Meanwhile, do_nothing
from worker.engine.loop import Engine
from worker.engine.step import Step
from worker.errors import ModelLoadFailed
from worker.llama.runner import LlamaRunner
from worker.wire.jobs import JobKey, SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("default_model")]

NO_COST = ((1, 1e-9), (32, 1.1e-9))
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "<|im_start|>user\nTell me about the sea.<|im_end|>\n<|im_start|>assistant\n",
    "Once upon a time there was a fisherman who",
)
SAMPLINGS = (
    SamplingParams(seed=1, temperature=0.0),
    SamplingParams(seed=2, temperature=0.7),
    SamplingParams(seed=3, temperature=1.0, top_p=0.9, repetition_penalty=1.2),
    SamplingParams(seed=4, temperature=0.0, logprobs=2),
)
N_TOKENS = 40


@pytest.fixture(scope="module")
def q4_0(any_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = shared_folder(tmp_path_factory) / "q4_0" / "q4_0.gguf"
    return made_once(path, lambda target: quantise(any_model, target, "Q4_0", n_threads=2))


def served_with(model_path: Path, draft: Path) -> AbstractContextManager[LoadedModel]:
    return served(model_path, draft_path=str(draft), draft_device="cpu", draft_max=8, parallel=4)


@pytest.fixture(scope="module")
def model(any_model: Path, q4_0: Path) -> Iterator[LoadedModel]:
    with served_with(any_model, q4_0) as model:
        yield model


def answers(model: LoadedModel, draft: LoadedDraft | None, *, cancelled_at: int = 0, **changes: Any) -> Told:
    """Run the four jobs, together. `cancelled_at`: the decode step before which the second leaves."""
    config = config_of(model, 4, itl_target_s=SLOW_S, has_own_text=False, history_bytes=0, **changes)
    jobs = [
        queued(JobKey(number), tokens_of(model, prompt), N_TOKENS, sampling)
        for number, (prompt, sampling) in enumerate(zip(PROMPTS, SAMPLINGS, strict=True))
    ]

    def leave(engine: Engine, told: Told) -> None:
        if cancelled_at and told.n_decodes >= cancelled_at:
            engine.cancel(JobKey(1))

    costs = CHEAP_ROWS if draft else ()
    return answered(model.runner, replace(config, row_costs=costs), jobs, before_step=leave, draft=draft)


@pytest.fixture(scope="module")
def plain(model: LoadedModel) -> Told:
    return answers(model, None)


def cheap(model: LoadedModel) -> LoadedDraft:
    assert model.draft is not None
    assert model.draft.row_costs, "they were measured"
    assert isinstance(model.draft.runner, LlamaRunner)
    model.draft.runner.kv.clear()
    return LoadedDraft(model.draft.runner, NO_COST)


def test_every_job_has_the_same_tokens_in_fewer_steps(model: LoadedModel, plain: Told) -> None:
    told = answers(model, cheap(model))
    assert told.texts == plain.texts
    assert told.n_decodes < 0.8 * plain.n_decodes
    assert told.n_accepted > 0.5 * told.n_drafted > 0
    assert not told.warnings


def test_jobs_that_pause_have_the_same_tokens(model: LoadedModel, plain: Told) -> None:
    told = answers(model, cheap(model), n_cells=128, prefix_cache_bytes=1 << 24)
    assert told.n_paused
    assert told.n_drafted
    assert told.texts == plain.texts


def test_a_job_that_is_cancelled_changes_nothing_for_the_others(model: LoadedModel, plain: Told) -> None:
    told = answers(model, cheap(model), cancelled_at=3)
    assert plain.texts[JobKey(1)].startswith(told.texts.pop(JobKey(1), ""))
    assert told.texts == {job: text for job, text in plain.texts.items() if job != 1}


def test_a_draft_model_that_fails_is_left_out_and_no_job_notices(model: LoadedModel, plain: Told) -> None:
    draft = cheap(model)
    told = answers(model, LoadedDraft(Failing(draft.runner), draft.row_costs))
    assert told.texts == plain.texts
    assert told.warnings == ["the draft model has failed and is not asked any more: llama_decode failed with code -3"]


class Failing:
    """A runner whose tenth step fails, for good."""

    def __init__(self, runner: Any) -> None:
        self._runner, self._n_steps = runner, 0

    def run(self, step: Step, meanwhile: Meanwhile = do_nothing) -> Any:
        self._n_steps += 1
        if self._n_steps >= 10:
            raise RuntimeError("llama_decode failed with code -3")
        return self._runner.run(step, meanwhile)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


# ── what is refused ──────────────────────────────────────────────────────────────────────────────


def test_memory_counts_both_models(model: LoadedModel, q4_0: Path) -> None:
    assert isinstance(model.runner, LlamaRunner)
    assert model.facts.draft is not None
    assert model.facts.memory_bytes == model.runner.sizes.total_bytes + model.facts.draft.memory_bytes
    assert model.facts.draft.memory_bytes > q4_0.stat().st_size
    assert (model.facts.draft.quant_kind, model.facts.draft.device) == ("Q4_0", "cpu:0")


def test_a_draft_model_with_another_vocabulary_is_refused(any_model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    rewrite(any_model, other, metadata={"tokenizer.ggml.eos_token_id": 5})
    with pytest.raises(ModelLoadFailed, match="its vocabulary is not the model's: its EOS token is 5, the model's is"):
        served_with(any_model, other).__enter__()


# ── the worker ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.process
def test_a_worker_says_what_its_draft_model_is_and_has_it_again_after_a_restart(any_model: Path, q4_0: Path) -> None:
    with serve_default(any_model, "--draft-model", str(q4_0), "--ctx-size", "1024", "--draft-max", "4") as worker:
        ready = worker.listening().wait_for("ready")
        before = worker.health()
        told = before["draft_model"]
        assert ready["draft_model"] == told["name"]
        assert (told["quant_kind"], told["device"]) == ("Q4_0", "cpu:0")
        assert q4_0.stat().st_size < told["memory_bytes"] < before["memory_bytes"]
        worker.revive()
        assert worker.health()["draft_model"] == told
        assert worker.text(prompt=PROMPTS[0], max_tokens=8, temperature=0.0)


@pytest.mark.process
def test_a_draft_model_of_no_use_is_one_line_and_exit_1(any_model: Path, tmp_path: Path) -> None:
    tiny = write_tiny(tmp_path / "tiny.gguf")
    for draft, code, why in (
        (str(tiny), "MODEL_LOAD_FAILED", "its vocabulary is not the model's: it has 262 tokens, the model's has"),
        (str(tmp_path / "absent.gguf"), "MODEL_NOT_FOUND", "absent.gguf"),
    ):
        with serve_default(any_model, "--draft-model", draft, "--ctx-size", "512") as worker:
            line = worker.failure()
        assert line["code"] == code
        assert why in line["message"]


@pytest.mark.process
def test_generate_gives_the_same_with_a_draft_model(any_model: Path, q4_0: Path) -> None:
    command = [sys.executable, "-m", "worker", "generate", PROMPTS[1], "--model", str(any_model), "--temperature", "0"]
    plain, drafting = (
        subprocess.run(
            [*command, "--max-tokens", "24", "--ctx-size", "512", *more],
            env=own_environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=True,
        )
        for more in ([], ["--draft-model", str(q4_0)])
    )  # fmt: skip
    assert plain.stdout == drafting.stdout != ""
