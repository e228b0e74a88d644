"""The CPU under the name of a GPU: with the sequence ids and the order of work there, all but the kernels."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from llama_cpp import llama_cpp as capi

from tests.llama.conftest import context_on
from tests.llama.served import Served
from tests.llama.tiny import write_tiny
from tests.on_cpu import loaded_on_cpu
from tests.queued import put_away
from worker.engine.config import EngineConfig
from worker.engine.step import Slice, Step
from worker.limits import MAX_DRAFTS
from worker.llama.batch import RowGroups
from worker.llama.held_width import HeldWidth
from worker.llama.model import Model
from worker.llama.runner import LlamaRunner
from worker.llama.seq_ids import n_retained_for
from worker.llama.warm_up import warm_up
from worker.wire.jobs import JobKey, SamplingParams, SlotId, TokenId

N_SLOTS = 4
PADDED = RowGroups(padded={2: 4, 3: 4})


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = write_tiny(tmp_path_factory.mktemp("gpu") / "tiny.gguf")
    with loaded_on_cpu(path) as loaded:
        if request.param == "cuda":
            loaded.devices = (replace(loaded.device, backend="cuda", kind="gpu"),)
        yield loaded


def runner_on(model: Model) -> LlamaRunner:
    n_slots = N_SLOTS + n_retained_for(model, N_SLOTS, swa_full=True)
    return LlamaRunner(model, context_on(model, n_ctx=4096, n_batch=2048, n_ubatch=2048, n_seq_max=n_slots))


def test_the_warm_up_measures_what_a_gpu_has_and_leaves_no_trace(model: Model) -> None:
    runner, is_on_gpu = runner_on(model), model.device.is_gpu
    shapes = warm_up(runner, target_s=1e9, is_deterministic=False, wants_drafts=True)
    assert runner.is_asynchronous == is_on_gpu
    assert runner.kv.n_cells_used == 0
    assert set(runner.kv.count_tokens()) == {0}
    widths = [width for width, _ in shapes.row_costs]
    assert widths[0] == 1
    assert widths[-1] == 1 + MAX_DRAFTS
    assert (3 in widths, 12 in widths) == (is_on_gpu, is_on_gpu)
    assert (shapes.retention.max_dead_cells > 0) == is_on_gpu
    assert shapes.ubatch_size in ((512, 1024, 2048) if is_on_gpu else (2048,))
    assert runner.context.row_groups == RowGroups(padded=dict(shapes.padded_widths))
    assert is_on_gpu or not shapes.padded_widths
    assert (runner.context.row_groups.held is not None) == is_on_gpu


def test_the_time_of_a_step_is_the_devices_and_work_is_done_while_it_computes(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step without rows is waited for too, so that no later step is charged for it."""
    events: list[str] = []
    synchronize = capi.llama_synchronize

    def noted(handle: object) -> None:
        events.append("waited")
        synchronize(handle)

    monkeypatch.setattr(capi, "llama_synchronize", noted)
    runner = runner_on(model)
    events.clear()
    for sampling in (None, SamplingParams(seed=0, temperature=0.0)):
        step = Slice(SlotId(0), runner.kv.n_cells(SlotId(0)), [TokenId(5)] * 3, sampling)
        runner.run(Step("prefill", (step,)), lambda: events.append("meanwhile"))
    assert events == (["meanwhile", "waited"] * 2 if model.device.is_gpu else [])


def test_jobs_next_to_others_give_what_they_give_alone(model: Model) -> None:
    runner = runner_on(model)
    always = HeldWidth(((1, 1.0), (32, 1.0)), 0.0)
    runner.context.row_groups = replace(PADDED, held=always) if model.device.is_gpu else RowGroups()
    chance = np.random.default_rng(7)
    prompts = [[TokenId(t) for t in chance.integers(3, model.n_vocab, n).tolist()] for n in (5, 40, 300, 17, 60, 9)]
    alone = [_answers(model, runner, [prompt]).texts[JobKey(0)] for prompt in prompts]
    together = _answers(model, runner, prompts)
    assert [together.texts[JobKey(job)] for job in range(len(prompts))] == alone
    assert sorted(together.ended) == list(range(len(prompts)))


def _answers(model: Model, runner: LlamaRunner, prompts: list[list[TokenId]]) -> Served:
    config = EngineConfig(
        n_slots=N_SLOTS,
        n_cells=4096,
        context_length=4096,
        chunk=64,
        widest_step=512,
        retained_slots=tuple(SlotId(slot) for slot in range(N_SLOTS, runner.context.n_slots)),
        max_dead_cells=512 if model.device.is_gpu else 0,
    )
    served = Served(runner, config, SamplingParams(seed=0, temperature=0.0, ignore_eos=True))
    for prompt in prompts:
        served.submit(prompt, 24)
    served.run()
    put_away(served.engine)
    return served
