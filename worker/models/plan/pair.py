"""Places for a served model and the draft model beside it: how the two share memory."""

from collections.abc import Sequence as Seq
from dataclasses import replace

from worker.config.engine_settings import Configure
from worker.errors import InsufficientMemory, ModelLoadFailed
from worker.models.facts.info import ModelInfo
from worker.models.plan.devices import Device
from worker.models.plan.memory import DEFAULT_PARALLEL, has_state, most_useful_cells
from worker.models.plan.placement import HOST_SHARE, DryRun, Placement, place
from worker.models.upstream.numbers import CELL_STEP, MAX_SEQ_IDS

MAX_PARALLEL_WITH_STATE = (MAX_SEQ_IDS - 1) // 2
"""Two slots for each job, and a sequence id that copies cells."""


def asked_of(config: Configure, info: ModelInfo, n_cells: int, parallel: int) -> Configure:
    """Return the configuration of a draft model: a slot for each of the served model's, and a spare one for each if it
    has recurrent state (engine/drafting/draft_model.py); and else the served model's settings.
    """
    assert config.draft_path is not None
    return replace(
        config,
        model_path=config.draft_path,
        device=config.device_of_draft,
        gpu_layers="auto",
        require_full_offload=False,
        split_mode="none",
        tensor_split=None,
        main_gpu=None,
        ctx_size=n_cells,
        parallel=2 * (parallel or DEFAULT_PARALLEL) if has_state(info) else parallel,
        draft_path=None,
        prompt_lookup="off",
        mtp=False,
    )


def place_pair(
    config: Configure,
    infos: tuple[ModelInfo, ModelInfo],
    available: Seq[Device],
    main_memory_bytes: int,
    dry_run: DryRun,
) -> tuple[Placement, Placement]:
    """Places for the served model and its draft model, in the order of their `infos`, so that both fit.

    The draft model has as many cells as the served one or, where memory is scarce, at least a half, a quarter, ... of
    them: it drafts for fewer jobs then. Raises: InsufficientMemory, ModelLoadFailed, as `place`.
    """
    served_info, draft_info = infos
    if has_state(draft_info) and config.parallel > MAX_PARALLEL_WITH_STATE:
        raise ModelLoadFailed(
            f"--draft-model: a model with recurrent state drafts for at most {MAX_PARALLEL_WITH_STATE} jobs: "
            "give --parallel that number or less, or a draft model with attention alone"
        )

    def beside(n_cells: int, parallel: int) -> Placement:
        own = asked_of(config, draft_info, n_cells, parallel)
        return place(own, draft_info, available, main_memory_bytes, dry_run)

    n_cells = most_useful_cells(config, served_info)
    while True:
        draft = beside(n_cells, config.parallel)
        is_least = n_cells <= CELL_STEP
        n_served = 0
        try:
            left_bytes = left_in_main(draft, main_memory_bytes)
            served = place(config, served_info, left_beside(draft, available), left_bytes, dry_run)
            n_served = served.plan.n_cells
            if is_least or n_served >= n_cells:
                return served, beside(n_cells, served.plan.parallel)
        except InsufficientMemory as error:
            if is_least:
                n_bytes = draft.host.total_bytes + sum(part.total_bytes for part in draft.gpus)
                raise InsufficientMemory(
                    f"{error}; the draft model also needs {n_bytes / 2**20:.0f} MiB: remove --draft-model, or use a "
                    "smaller one",
                    needed_bytes=error.needed_bytes,
                    available_bytes=error.available_bytes,
                    device=error.device,
                ) from None
        n_cells = max(CELL_STEP, n_cells // 2 // CELL_STEP * CELL_STEP, n_served)


def left_beside(placement: Placement, available: Seq[Device]) -> list[Device]:
    """The devices with what a placement leaves of their memory."""
    taken = {
        device.name: part.total_bytes for device, part in zip(placement.group.devices, placement.gpus, strict=False)
    }
    return [replace(device, free_bytes=max(0, device.free_bytes - taken.get(device.name, 0))) for device in available]


def left_in_main(placement: Placement, main_memory_bytes: int) -> int:
    """Main memory of which the planned share is what a placement leaves of it."""
    return max(0, main_memory_bytes - int(placement.main_memory.total_bytes / HOST_SHARE))
