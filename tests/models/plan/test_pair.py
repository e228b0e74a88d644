"""A served model and its draft model: room for both, in the same order of preference."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.models.plan.rehearsed import dry_run
from tests.models.plan.test_placement import CPU, MIB, MODEL, PLENTY, config, gpu, needs, with_room_for
from worker.config.engine_settings import Configure
from worker.errors import InsufficientMemory, ModelLoadFailed
from worker.models.facts.info import ModelInfo
from worker.models.plan.devices import Device
from worker.models.plan.pair import left_beside, left_in_main, place_pair
from worker.models.plan.placement import HOST_SHARE, Placement, place
from worker.models.upstream.numbers import CELL_STEP

SMALL = replace(
    MODEL, tensors=tuple(replace(tensor, n_bytes=tensor.n_bytes // 10) for tensor in MODEL.tensors), path=Path("d.gguf")
)
ON_CPU = {"draft_path": "d.gguf", "draft_device": "cpu"}


class Pair(NamedTuple):
    served: Placement
    draft: Placement


def placed_pair(config: Configure, draft: ModelInfo, available: list[Device], main_memory_bytes: int) -> Pair:
    return Pair(*place_pair(config, (MODEL, draft), available, main_memory_bytes, dry_run))


def pair(
    available: list[Device], main_memory_bytes: int = PLENTY, draft: dict[str, str] = ON_CPU, **changes: object
) -> Pair:
    return placed_pair(config(**draft, **changes), SMALL, available, main_memory_bytes)


def bytes_of(found: Pair) -> int:
    return found.served.main_memory.total_bytes + found.draft.main_memory.total_bytes


# ── memory ───────────────────────────────────────────────────────────────────────────────────────


def test_a_draft_model_has_the_cells_and_slots_of_the_model() -> None:
    found = pair([CPU], device="cpu")
    assert (found.draft.plan.n_cells, found.draft.plan.parallel) == (4096, 8)
    assert (found.served.plan.n_cells, found.served.plan.parallel) == (4096, 8)


def test_a_draft_model_with_recurrent_state_needs_two_slots_for_each_job() -> None:
    recurrent = replace(SMALL, architecture="mamba")
    most = placed_pair(config(**ON_CPU, parallel=127), recurrent, [CPU], PLENTY)
    assert most.draft.plan.parallel == 254
    with pytest.raises(ModelLoadFailed, match="drafts for at most 127 jobs: give --parallel that number or less"):
        placed_pair(config(**ON_CPU, parallel=128), recurrent, [CPU], PLENTY)


def test_both_are_in_the_room_there_is_or_refused_with_what_the_draft_model_takes() -> None:
    least = bytes_of(pair([CPU], device="cpu", ctx_size=CELL_STEP, parallel=1))
    fits = pair([CPU], int(least / HOST_SHARE) + MIB, device="cpu", ctx_size=CELL_STEP, parallel=1)
    assert bytes_of(fits) == least
    with pytest.raises(InsufficientMemory, match=r"the draft model also needs .* MiB: remove --draft-model"):
        pair([CPU], int(least / HOST_SHARE) - 2 * MIB, device="cpu", ctx_size=CELL_STEP, parallel=1)


def test_the_default_context_is_made_smaller_for_both() -> None:
    roomy = pair([CPU], device="cpu", ctx_size=0)
    least = bytes_of(pair([CPU], device="cpu", ctx_size=CELL_STEP, parallel=1))
    scarce = pair([CPU], int((least + bytes_of(roomy)) / 2 / HOST_SHARE), device="cpu", ctx_size=0)
    assert scarce.draft.plan.n_cells <= scarce.served.plan.n_cells < roomy.served.plan.n_cells
    assert bytes_of(scarce) <= (least + bytes_of(roomy)) / 2


def test_a_draft_model_may_have_a_device_of_its_own() -> None:
    card = with_room_for(needs())
    found = pair([card, CPU])
    assert (found.served.device, found.draft.device) == (card, CPU)
    assert found.served.is_complete


def test_a_draft_model_leaves_the_model_what_is_left_of_a_gpu() -> None:
    card = gpu(1 << 40)
    draft = place(config(ctx_size=4096), SMALL, [card, CPU], PLENTY, dry_run)
    (rest, cpu) = left_beside(draft, [card, CPU])
    assert card.free_bytes - rest.free_bytes == draft.gpus[0].total_bytes > 0
    assert cpu == CPU
    assert PLENTY - left_in_main(draft, PLENTY) >= draft.main_memory.total_bytes
