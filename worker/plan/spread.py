"""The place of each part of a model that is spread over GPUs and main memory, as llama.cpp spreads it.

    n_gpu_layers = 3 of 5, two GPUs alike:     input, layer 0, layer 1 | layer 2      | layer 3, output
                                               main memory             | first GPU    | second GPU

Owns the rule which layer goes where, whether the file is mapped, and the sums. Knows no device, only their shares; the
caller says which weights the CPU lays out anew. Pure. Source: llama_model_base::load_tensors (llama-model.cpp),
LLM_TENSOR_INFOS (llama-arch.cpp).
"""

import bisect
import itertools
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from worker.model.gguf import Tensor
from worker.model.info import ModelInfo, block_of
from worker.plan.memory import (
    Demand,
    Plan,
    graph_bytes,
    graph_input_bytes,
    head_graph_bytes,
    layer_memory_bytes,
    planned_graph,
)
from worker.upstream.numbers import PIPELINE_COPIES

_INPUTS = ("token_embd.", "position_embd.", "token_types.", "per_layer_token_embd.")
"""Tensors whose rows are looked up, which the CPU does wherever the layers are."""
_FIRST_LAYER = ("token_embd_norm.", "rope_freqs.", "rope_factors_long.", "rope_factors_short.")

MAX_SHARE_TWICE = 0.1
"""The largest share of the weights that may be in main memory twice. A mapped file is there as a whole, and repacked
weights are there a second time. If these are more than this share, the file is read and not mapped."""

MAPPED_ALIGNMENT = 32
"""TENSOR_ALIGNMENT (ggml-impl.h): ggml ends the process where a mapping's first weight begins elsewhere."""

RepackedBytes = Callable[[Tensor], int]
"""Bytes that a matrix takes in main memory laid out anew; 0 for one that the CPU computes with as the file has it."""


def nothing_repacked(_: Tensor) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes in one place."""

    weights_bytes: int = 0
    kv_bytes: int = 0
    compute_bytes: int = 0
    """The compute buffers, with the logits that are kept to be read."""

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.compute_bytes

    def __add__(self, other: "Part") -> "Part":
        return Part(
            self.weights_bytes + other.weights_bytes,
            self.kv_bytes + other.kv_bytes,
            self.compute_bytes + other.compute_bytes,
        )


@dataclass(frozen=True, slots=True)
class InMain:
    """Weights in main memory, in bytes."""

    as_in_file: int = 0
    """Weights that are computed with as the file has them."""
    repacked: int = 0
    """Weights that are laid out anew."""
    left_in_file: int = 0
    """The bytes of the repacked weights in the file, if nothing else needs them."""
    can_be_mapped: bool = True

    @property
    def is_mapped(self) -> bool:
        """True if the file should be mapped: all workers then share its pages, and the system can reclaim them."""
        return self.can_be_mapped and self.left_in_file <= MAX_SHARE_TWICE * (self.as_in_file + self.repacked)

    @property
    def total_bytes(self) -> int:
        """A mapping reaches from its first weight to its last, and has been read through when the model is loaded."""
        return self.as_in_file + self.repacked + (self.left_in_file if self.is_mapped else 0)

    def __add__(self, other: "InMain") -> "InMain":
        return InMain(
            self.as_in_file + other.as_in_file,
            self.repacked + other.repacked,
            self.left_in_file + other.left_in_file,
            self.can_be_mapped and other.can_be_mapped,
        )


@dataclass(frozen=True, slots=True)
class Layers:
    """The bytes of a model's weights by llama.cpp's layers."""

    input: InMain
    """The input layer, which is always in main memory."""
    layer_bytes: tuple[int, ...]
    """The repeating layers and, at the end, the output layer, as they are on a GPU."""
    in_main: tuple[InMain, ...]
    """The same layers as they are in main memory."""
    largest_bytes: tuple[int, ...]
    """The largest tensor of each of these."""
    is_tied: bool
    """True if the output layer has no matrix of its own but uses the token embedding. That is in memory a second time
    if the layer is on a GPU, or if it is repacked for products."""
    embedding_bytes: int

    @property
    def n_layers(self) -> int:
        """The number of layers with the output layer, as llama.cpp counts them."""
        return len(self.layer_bytes)

    def weights_in_main(self, n_gpu_layers: int) -> InMain:
        """Return the weights in main memory while `n_gpu_layers`, from the output layer backwards, are on GPUs."""
        return sum(self.in_main[: max(0, self.n_layers - n_gpu_layers)], self.input)


def layers_of(info: ModelInfo, repacked_bytes: RepackedBytes = nothing_repacked) -> Layers:
    """The bytes of the tensors that are loaded, by layer."""
    n_layers = info.block_count + 1
    own: list[list[Tensor]] = [[] for _ in range(n_layers)]
    tensors = info.loaded_tensors
    inputs = [tensor for tensor in tensors if tensor.name.startswith(_INPUTS)]
    for tensor in tensors:
        if not tensor.name.startswith(_INPUTS):
            own[_layer_of(tensor.name, n_layers)].append(tensor)
    in_main = [sum((_in_main(tensor, repacked_bytes) for tensor in tensors_of), InMain()) for tensors_of in own]
    embeddings = [tensor for tensor in inputs if tensor.name == "token_embd.weight"]
    is_tied = all(tensor.name != "output.weight" for tensor in info.tensors)
    if is_tied:
        in_main[-1] += InMain(repacked=sum(map(repacked_bytes, embeddings)))
    return Layers(
        input=InMain(sum(tensor.n_bytes for tensor in inputs), can_be_mapped=info.alignment % MAPPED_ALIGNMENT == 0),
        layer_bytes=tuple(sum(tensor.n_bytes for tensor in tensors_of) for tensors_of in own),
        in_main=tuple(in_main),
        largest_bytes=tuple(max((tensor.n_bytes for tensor in tensors_of), default=0) for tensors_of in own),
        is_tied=is_tied,
        embedding_bytes=sum(tensor.n_bytes for tensor in embeddings),
    )


def _in_main(tensor: Tensor, repacked_bytes: RepackedBytes) -> InMain:
    """Only matrices are laid out anew, because ggml's kernels for them multiply and do nothing else."""
    n_repacked = repacked_bytes(tensor) if tensor.name.endswith(".weight") and len(tensor.dims) > 1 else 0
    return InMain(repacked=n_repacked, left_in_file=tensor.n_bytes) if n_repacked else InMain(tensor.n_bytes)


def spread(
    info: ModelInfo,
    layers: Layers,
    demand: Demand,
    plan: Plan,
    *,
    n_gpu_layers: int,
    shares: Seq[float],
    has_rows_split: bool = False,
) -> tuple[Part, tuple[Part, ...]]:
    """Return what is in main memory, and what on each of the GPUs that have these `shares` of the GPU layers.

    `n_gpu_layers`: how many layers, from the output layer backwards, are on a GPU; with 0 of them a GPU still computes
    what is worth its copy. No shares: all lies in main memory.
    """
    in_main = layers.weights_in_main(n_gpu_layers if shares else 0)
    if not shares:
        return Part(in_main.total_bytes, plan.kv_bytes, plan.compute_bytes + plan.output_bytes), ()
    kv_bytes = _kv_bytes(info, layers, demand, plan)
    owners = gpu_of_layers(layers.n_layers, n_gpu_layers, shares)
    gpus = [Part() for _ in shares]
    host = Part(in_main.total_bytes)
    for layer, owner in enumerate(owners):
        if owner is None:
            host += Part(kv_bytes=kv_bytes[layer])
        else:
            is_copied = layers.is_tied and layer == layers.n_layers - 1
            gpus[owner] += Part(layers.layer_bytes[layer] + is_copied * layers.embedding_bytes, kv_bytes[layer])
    is_pipeline = len(shares) > 1 and None not in owners and not has_rows_split
    compute_bytes = _gpu_compute_bytes(info, layers, demand, plan, owners, is_pipeline=is_pipeline)
    graph_input = graph_input_bytes(info, planned_graph(demand, plan))
    return (
        host + Part(compute_bytes=graph_input + plan.output_bytes),
        tuple(
            gpu + Part(compute_bytes=compute_bytes if at in owners or not n_gpu_layers else 0)
            for at, gpu in enumerate(gpus)
        ),
    )


def gpu_of_layers(n_layers: int, n_gpu_layers: int, shares: Seq[float]) -> tuple[int | None, ...]:
    """Return the GPU of each layer, the output layer being the last; None means main memory."""
    n_gpu_layers = min(n_gpu_layers, n_layers)
    first = n_layers - n_gpu_layers
    ends = [end / sum(shares) for end in itertools.accumulate(shares)]
    last = max(gpu for gpu, share in enumerate(shares) if share > 0)
    return tuple(
        None if layer < first else min(last, bisect.bisect_right(ends, (layer - first) / n_gpu_layers))
        for layer in range(n_layers)
    )


def _layer_of(name: str, n_layers: int) -> int:
    """A tensor's layer. A tensor that belongs to none is the output layer's."""
    block = block_of(name)
    if block is not None:
        return min(block, n_layers - 1)
    return 0 if name.startswith(_FIRST_LAYER) else n_layers - 1


def _kv_bytes(info: ModelInfo, layers: Layers, demand: Demand, plan: Plan) -> list[int]:
    """The bytes of each layer's KV cells; the output layer has none."""
    own = layer_memory_bytes(info, demand, plan)
    return [*own, *([0] * (layers.n_layers - len(own)))]


def _gpu_compute_bytes(
    info: ModelInfo, layers: Layers, demand: Demand, plan: Plan, owners: Seq[int | None], *, is_pipeline: bool
) -> int:
    """Return the bytes that each GPU computes with: the graph, copies of weights in main memory for long steps, and
    waiting input.

    The copies are one tensor at a time (ggml_backend_sched_split_graph begins a new split for each), and none of the
    output layer's, which computes a few rows only. Several GPUs that have all layers, whole ones, work as a pipeline,
    which has four copies of what goes in; also where one of them has a share of 0.
    """
    graph = planned_graph(demand, plan)
    borrowed = [layers.largest_bytes[layer] for layer, owner in enumerate(owners[:-1]) if owner is None]
    waiting = (PIPELINE_COPIES - 1) * graph_input_bytes(info, graph) if is_pipeline else 0
    own = graph_bytes(info, graph) + head_graph_bytes(info, demand, plan)
    return own + max(borrowed, default=0) + waiting
