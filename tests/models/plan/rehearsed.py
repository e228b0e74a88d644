"""A dry run that can be read, and models for it: what a plan takes follows from a few sizes that stand here.

Each layer lies on one device, the last ones on the GPUs by their shares. Tensors lie where their layers are, and the
token embedding in main memory.
"""

import bisect
import itertools
from dataclasses import replace
from pathlib import Path

from worker.config.engine_settings import Configure
from worker.models.facts.gguf import Tensor
from worker.models.facts.info import ModelInfo, block_of
from worker.models.plan.buffers import Buffer, BufferSizes
from worker.models.plan.memory import Need, Plan, has_checkpoints, has_state
from worker.models.plan.placement import DryRun, Group
from worker.models.upstream.numbers import CELL_STEP

MIB = 2**20
CELL_BYTES = 512
"""A layer's cell, half of it K and half of it V."""
STATE_BYTES = 100_000
"""A recurrent state of a whole model, in main memory or on the first GPU."""
TOKEN_BYTES = 4096
"""The memory that a token of a micro-batch takes, where layers are computed."""
ROW_BYTES = 4000
"""A row of logits."""
BORROWED_BYTES = 200 * MIB
"""The weights that a GPU copies for long steps if layers lie in main memory."""


def info(trained: int = 8192, n_blocks: int = 4) -> ModelInfo:
    return ModelInfo(
        path=Path("m.gguf"),
        part_paths=(Path("m.gguf"),),
        file_bytes=90 * MIB + 1000,
        version=3,
        architecture="llama",
        name="m",
        quant_kind="Q4_1",
        context_length=trained,
        block_count=n_blocks,
        embedding_length=512,
        head_counts=(4,) * n_blocks,
        head_counts_kv=(2,) * n_blocks,
        key_length=64,
        value_length=64,
        vocab_size=1000,
        tokenizer_model="gpt2",
        license=None,
        tensors=(Tensor("output.weight", (90 * MIB,), "I8", 90 * MIB),),
    )


def layered(n_blocks: int = 8, *, has_output: bool = True) -> ModelInfo:
    """Blocks of 300 MiB, an output layer of 2010 MiB, an embedding of 1000 MiB."""
    sizes = {"token_embd.weight": 1000, "output_norm.weight": 10, **({"output.weight": 2000} if has_output else {})}
    for block in range(n_blocks):
        sizes |= {f"blk.{block}.ffn_down.weight": 200, f"blk.{block}.attn_q.weight": 100}
    tensors = tuple(Tensor(name, (size * MIB, 1), "I8", size * MIB) for name, size in sizes.items())
    return replace(info(n_blocks=n_blocks), tensors=tensors)


def dry_run(config: Configure, model: ModelInfo, group: Group, n_gpu_layers: int, plan: Plan) -> Need:
    return _need(config, model, group, n_gpu_layers, plan, is_repacking=False)


def repacking(config: Configure, model: ModelInfo, group: Group, n_gpu_layers: int, plan: Plan) -> Need:
    """The same on a CPU that lays matrices anew, unless a GPU reads them."""
    is_pinned = any(device.has_host_buffers for device in group.devices)
    return _need(config, model, group, n_gpu_layers, plan, is_repacking=not is_pinned)


def _need(
    config: Configure, model: ModelInfo, group: Group, n_gpu_layers: int, plan: Plan, *, is_repacking: bool
) -> Need:
    owners = owners_of(model.block_count + 1, group, n_gpu_layers)
    cells = CELL_BYTES // 2 * (2 if config.cache_type_k == "f32" else 1) + CELL_BYTES // 2
    found = [Buffer("CPU", "output", ROW_BYTES * (plan.parallel + plan.n_chunk_rows))]
    for tensor in model.loaded_tensors:
        block = block_of(tensor.name)
        owner = "CPU" if tensor.name.startswith("token_embd") else owners[-1 if block is None else block]
        found.append(
            Buffer(
                "CPU_REPACK" if owner == "CPU" and is_repacking and block is not None else owner,
                "model",
                tensor.n_bytes,
            )
        )
    if all(tensor.name != "output.weight" for tensor in model.tensors) and (owners[-1] != "CPU" or is_repacking):
        found.append(Buffer("CPU_REPACK" if owners[-1] == "CPU" else owners[-1], "model", model.tied_bytes))
    for layer, owner in enumerate(owners[:-1]):
        has_window = model.windows is not None and model.windows.in_layer[layer] and not plan.swa_full
        found.append(Buffer(owner, "KV", (CELL_STEP if has_window else plan.n_padded_cells) * cells))
    if has_state(model):
        n_states = (plan.parallel + 2) * (1 + plan.n_snapshots)
        found.append(Buffer(owners[-1], "RS", n_states * STATE_BYTES))
    for name in set(owners):
        borrowed = BORROWED_BYTES if name != "CPU" and "CPU" in owners else 0
        found.append(Buffer(name, "compute", TOKEN_BYTES * plan.ubatch_size + plan.n_padded_cells * 16 + borrowed))
    return Need(BufferSizes(tuple(found)), STATE_BYTES if has_checkpoints(model) else 0)


def owners_of(n_layers: int, group: Group, n_gpu_layers: int) -> list[str]:
    """The name of each layer's device."""
    first = n_layers - min(n_gpu_layers, n_layers) if group.is_gpu else n_layers
    ends = [end / sum(group.shares) for end in itertools.accumulate(group.shares)]
    names = [device.name for device in group.devices]
    return [
        "CPU"
        if layer < first
        else names[min(len(names) - 1, bisect.bisect_right(ends, (layer - first) / (n_layers - first)))]
        for layer in range(n_layers)
    ]


_: DryRun = dry_run
