"""A draft model beside the served one: where both go, and whether they speak of the same tokens.

Owns what a draft model is asked for, which follows from what the served one is, how the two share memory, and the
comparison of their vocabularies. load.py loads it as it loads the served one.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import msgspec

from worker.errors import InsufficientMemory, ModelLoadFailed
from worker.llama.buffers import BufferSizes
from worker.llama.devices import Device
from worker.llama.model import Model
from worker.llama.placement import HOST_SHARE, Placement, place
from worker.model.info import ModelInfo
from worker.model.memory import CELL_STEP, demand_of, wanted_cells
from worker.model.spread import RepackedBytes
from worker.wire.messages import Configure, DraftModelAsked


@dataclass(frozen=True, slots=True)
class Pair:
    """Where the served model goes, and the draft model beside it."""

    served: Placement
    draft: Placement


def asked_of(config: Configure, draft: DraftModelAsked, n_cells: int, parallel: int) -> Configure:
    """What a draft model is asked for: a slot for each of the served model's, all else as the served model has it."""
    return msgspec.structs.replace(
        config,
        model_path=draft.path,
        device=draft.device,
        gpu_layers="auto",
        require_full_offload=False,
        split_mode="none",
        tensor_split=(),
        main_gpu=-1,
        ctx_size=n_cells,
        parallel=parallel,
        draft=None,
    )


def place_pair(
    config: Configure,
    infos: tuple[ModelInfo, ModelInfo],
    available: Seq[Device],
    main_memory_bytes: int,
    repacked_bytes: RepackedBytes,
) -> Pair:
    """Places for the served model and its draft model, in the order of their `infos`, so that both fit.

    The draft model has as many cells as the served one or, where memory is scarce, at least a half, a quarter, ... of
    them: it drafts for fewer jobs then. Raises: InsufficientMemory, ModelLoadFailed, as `place`.
    """
    assert config.draft is not None
    served_info, draft_info = infos
    n_cells = config.draft.n_cells or wanted_cells(served_info, demand_of(config, is_on_gpu=False))
    while True:
        asked = asked_of(config, config.draft, n_cells, config.parallel)
        draft = place(asked, draft_info, available, main_memory_bytes, repacked_bytes)
        is_least = n_cells <= CELL_STEP or bool(config.prefill_chunk)
        n_served = 0
        try:
            rest = left_beside(draft, available)
            left_bytes = left_in_main(draft, main_memory_bytes)
            served = place(config, served_info, rest, left_bytes, repacked_bytes)
        except InsufficientMemory as error:
            if is_least:
                raise _with_draft(error, draft) from None
        else:
            n_served = served.plan.n_cells
            if is_least or n_served >= n_cells:
                asked = asked_of(config, config.draft, n_cells, served.plan.parallel)
                return Pair(served, place(asked, draft_info, available, main_memory_bytes, repacked_bytes))
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


def _with_draft(error: InsufficientMemory, draft: Placement) -> InsufficientMemory:
    n_bytes = draft.main_memory.total_bytes + sum(
        part.total_bytes
        for device, part in zip(draft.group.devices, draft.gpus, strict=False)
        if device.memory_architecture == "vram-only"
    )
    return InsufficientMemory(
        f"{error}; beside it the draft model takes {n_bytes / 2**20:.0f} MiB: leave --draft-model out, or take a "
        "smaller one",
        needed_bytes=error.needed_bytes,
        available_bytes=error.available_bytes,
        device=error.device,
    )


def bytes_beside(served: Model, draft: Model, sizes: BufferSizes) -> int:
    """How many bytes of a draft model's buffers lie where the served model is."""
    if served.device.is_gpu:
        return sum(map(sizes.on_device, served.device_names))
    return sizes.total_bytes - sum(sizes.on_device(gpu.name) for gpu in draft.devices if gpu.is_gpu)


def check_vocabulary(path: str, draft: Model, served: Model) -> None:
    """Raises: ModelLoadFailed unless every token means the same to both models: its draft tokens would be others."""
    difference = _difference(draft, served)
    if difference is not None:
        raise ModelLoadFailed(
            f"--draft-model {path}: its vocabulary is not the model's: {difference}; use a draft model of the same "
            "family, or leave it out"
        )


def _difference(draft: Model, served: Model) -> str | None:
    """The first difference of two vocabularies, in words."""
    if draft.n_vocab != served.n_vocab:
        return f"it has {draft.n_vocab} tokens, the model's has {served.n_vocab}"
    for token, (own, other) in enumerate(zip(draft.token_texts(), served.token_texts(), strict=True)):
        if own != other:
            return f"token {token} is {_shown(own)} there, {_shown(other)} in the model's"
    specials = served.special_tokens()
    for kind, token_id in draft.special_tokens().items():
        if specials[kind] != token_id:
            return f"its {kind} token is {token_id}, the model's is {specials[kind]}"
    own_ends, ends = draft.ends.tolist(), served.ends.tolist()
    if own_ends != ends:
        return f"its answers end with the tokens {own_ends}, the model's with {ends}"
    return None


def _shown(text: bytes) -> str:
    return repr(text.decode(errors="replace"))
