"""The least time a model takes: by hand for small numbers, and laws for all."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.bench.made import steady
from tools.bench.answers import Answer, Ask
from tools.bench.peaks import Peaks
from tools.bench.prompts import Prompts
from tools.bench.roofs import Phase, Roof, Weights, work_of
from tools.bench.scenarios import LARGE, SCENARIOS
from tools.made_model import SHAPES, made_model
from worker.model.gguf import Tensor
from worker.model.info import ModelInfo, read_info

ROOF = Roof(Weights(n_bytes=100, n_inner=10, n_output=2), Peaks(100, 1000.0, 60.0, "amx"))
"""A step reads for 0.1 s and computes for 0.2 s of each stream."""


def answers_of(asks: Sequence[Ask], n_prompt: int = 100) -> list[Answer]:
    return [replace(steady(ask.n_tokens, 10.0), n_prompt=n_prompt) for ask in asks]


# ── what is asked ────────────────────────────────────────────────────────────────────────────────


def test_what_an_earlier_prompt_begins_with_is_not_read_again() -> None:
    asks = [Ask(prompt="abcd", n_tokens=3), Ask(prompt="abxy", n_tokens=2), Ask(prompt="abxyzz12", n_tokens=4, phase=1)]
    assert work_of(asks, answers_of(asks)) == (
        Phase(n_new=(100.0, 50.0), n_tokens=(3, 2)),
        Phase(n_new=(50.0,), n_tokens=(4,)),
    )


@pytest.mark.parametrize("scenario", [*SCENARIOS, *LARGE], ids=lambda scenario: scenario.name)
def test_every_scenario_s_work_has_all_its_tokens_and_a_roof_that_no_server_reaches(scenario: object) -> None:
    assert isinstance(scenario, type(SCENARIOS[0]))
    asks = scenario.asks(Prompts(1))
    work = work_of(asks, answers_of(asks))
    assert sum(sum(phase.n_tokens) for phase in work) == sum(ask.n_tokens for ask in asks)
    assert all(0 <= n_new <= 100 for phase in work for n_new in phase.n_new)
    for measure in scenario.own:
        if measure.roof is not None:
            slower = replace(ROOF, peaks=replace(ROOF.peaks, read_bytes_per_s=10.0, multiply_adds_per_s=1.0))
            found, less = measure.roof(ROOF, work), measure.roof(slower, work)
            assert found > 0
            assert (less > found) if measure.unit == "ms" else (less < found)


# ── the times ────────────────────────────────────────────────────────────────────────────────────


def test_a_step_takes_what_its_longer_part_takes() -> None:
    assert ROOF.step_s(1) == pytest.approx(12 / 60)
    assert ROOF.step_s(4) == pytest.approx(4 * 12 / 60)
    reading = replace(ROOF, peaks=replace(ROOF.peaks, multiply_adds_per_s=1e9))
    assert reading.step_s(1) == reading.step_s(4) == pytest.approx(0.1)


def test_of_a_prompt_only_the_last_token_has_logits() -> None:
    assert ROOF.prompt_s(9) == pytest.approx((9 * 10 + 2) / 60)


def test_streams_that_end_make_steps_narrower() -> None:
    phase = Phase(n_new=(3.0, 4.0), n_tokens=(3, 2))
    assert ROOF.phase_s(phase) == pytest.approx(ROOF.prompt_s(7) + ROOF.step_s(2) + ROOF.step_s(1))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 500))
def test_one_phase_takes_no_longer_than_its_requests_one_by_one(n_tokens: list[int], n_new: int) -> None:
    whole = ROOF.phase_s(Phase((float(n_new),) * len(n_tokens), tuple(n_tokens)))
    parts = sum(ROOF.phase_s(Phase((float(n_new),), (one,))) for one in n_tokens)
    assert whole <= parts * 1.000001


# ── the weights ──────────────────────────────────────────────────────────────────────────────────


def with_tensors(info: ModelInfo, *tensors: Tensor, n_experts_used: int = 0) -> Weights:
    return Weights.of(replace(info, tensors=tensors, block_count=1, n_mtp_blocks=0, experts_used=n_experts_used))


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    return read_info(made_model(tmp_path_factory.mktemp("model"), SHAPES["tiny"]))


EMBEDDING = Tensor("token_embd.weight", (8, 100), "Q8_0", 850)
INNER = Tensor("blk.0.attn_q.weight", (8, 8), "Q4_0", 36)
NORM = Tensor("blk.0.attn_norm.weight", (8,), "F32", 32)


def test_a_tied_embedding_is_the_output_and_one_that_is_not_is_not_read(info: ModelInfo) -> None:
    output = Tensor("output.weight", (8, 100), "Q6_K", 656)
    assert with_tensors(info, EMBEDDING, INNER, NORM) == Weights(850 + 36, 64, 800)
    assert with_tensors(info, EMBEDDING, INNER, NORM, output) == Weights(656 + 36, 64, 800)


def test_of_experts_only_those_that_compute_a_token_are_read(info: ModelInfo) -> None:
    experts = Tensor("blk.0.ffn_up_exps.weight", (8, 16, 4), "Q4_0", 400)
    assert with_tensors(info, EMBEDDING, INNER, experts, n_experts_used=2) == Weights(850 + 36 + 200, 64 + 256, 800)


def test_a_real_file_is_read_nearly_whole(info: ModelInfo) -> None:
    weights = Weights.of(info)
    assert 0.5 * info.weights_bytes < weights.n_bytes <= info.weights_bytes


@pytest.mark.model
def test_the_default_model_has_135_million_weights(default_model: Path) -> None:
    weights = Weights.of(read_info(default_model))
    assert weights.n_inner + weights.n_output == pytest.approx(134.5e6, rel=0.01)
    assert weights.n_bytes == pytest.approx(default_model.stat().st_size, rel=0.03)
