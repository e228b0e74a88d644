"""What lies where when a model is spread over GPUs and main memory, as llama.cpp spreads it.

    n_gpu_layers = 3 of 5, two GPUs alike:     input, layer 0, layer 1 | layer 2      | layer 3, output
                                               main memory             | first GPU    | second GPU

Owns the rule which layer goes where and the sums. Knows no device, only their shares. Pure. Source:
llama_model_base::load_tensors (llama-model.cpp), LLM_TENSOR_INFOS (llama-arch.cpp).
"""

import bisect
import itertools
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from worker.card import ModelCard, block_of
from worker.graph_memory import PIPELINE_COPIES, graph_bytes, graph_input_bytes
from worker.memory import Demand, Plan, layer_memory_bytes, planned_graph

_INPUTS = ("token_embd.", "position_embd.", "token_types.", "per_layer_token_embd.")
"""Rows of these are looked up, which the CPU does wherever the layers are."""
_FIRST_LAYER = ("token_embd_norm.", "rope_freqs.", "rope_factors_long.", "rope_factors_short.")


@dataclass(frozen=True, slots=True)
class Part:
    """What lies in one place, in bytes."""

    weights_bytes: int = 0
    kv_bytes: int = 0
    compute_bytes: int = 0
    """With the logits that are kept to be read."""

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
class Layers:
    """The bytes of a model's weights by llama.cpp's layers."""

    input_bytes: int
    """Always in main memory."""
    layer_bytes: tuple[int, ...]
    """The repeating layers and, at the end, the output layer."""
    largest_bytes: tuple[int, ...]
    """The largest tensor of each of these."""
    is_tied: bool
    """The output layer has no matrix of its own, but the token embedding: once more where it is on a GPU."""
    embedding_bytes: int

    @property
    def n_layers(self) -> int:
        """With the output layer, as llama.cpp counts them."""
        return len(self.layer_bytes)


def layers_of(card: ModelCard) -> Layers:
    """The tensors of a card that are loaded, in their layers."""
    n_layers = card.block_count + 1
    sizes: list[list[int]] = [[] for _ in range(n_layers)]
    tensors = card.loaded_tensors
    inputs = [tensor for tensor in tensors if tensor.name.startswith(_INPUTS)]
    for tensor in tensors:
        if not tensor.name.startswith(_INPUTS):
            sizes[_layer_of(tensor.name, n_layers)].append(tensor.n_bytes)
    return Layers(
        input_bytes=sum(tensor.n_bytes for tensor in inputs),
        layer_bytes=tuple(map(sum, sizes)),
        largest_bytes=tuple(max(own, default=0) for own in sizes),
        is_tied=all(tensor.name != "output.weight" for tensor in card.tensors),
        embedding_bytes=sum(tensor.n_bytes for tensor in inputs if tensor.name == "token_embd.weight"),
    )


def spread(
    card: ModelCard,
    layers: Layers,
    demand: Demand,
    plan: Plan,
    *,
    n_gpu_layers: int,
    shares: Seq[float],
    has_rows_split: bool = False,
) -> tuple[Part, tuple[Part, ...]]:
    """What lies in main memory, and what on each of the GPUs that have these `shares` of the GPU layers.

    `n_gpu_layers`: how many layers, from the output layer backwards, are on a GPU; with 0 of them a GPU still computes
    what is worth its copy. No shares: all lies in main memory.
    """
    if not shares:
        return Part(plan.weights_bytes, plan.kv_bytes, plan.compute_bytes + plan.output_bytes), ()
    kv_bytes = _kv_bytes(card, layers, demand, plan)
    owners = gpu_of_layers(layers.n_layers, n_gpu_layers, shares)
    gpus = [Part() for _ in shares]
    host = Part(layers.input_bytes)
    for layer, owner in enumerate(owners):
        weights_bytes = layers.layer_bytes[layer]
        if owner is None:
            host += Part(weights_bytes, kv_bytes[layer])
        else:
            is_copied = layers.is_tied and layer == layers.n_layers - 1
            gpus[owner] += Part(weights_bytes + is_copied * layers.embedding_bytes, kv_bytes[layer])
    is_pipeline = len(shares) > 1 and None not in owners and not has_rows_split
    compute_bytes = _gpu_compute_bytes(card, layers, demand, plan, owners, is_pipeline=is_pipeline)
    graph_input = graph_input_bytes(card, planned_graph(demand, plan))
    return (
        host + Part(compute_bytes=graph_input + plan.output_bytes),
        tuple(
            gpu + Part(compute_bytes=compute_bytes if at in owners or not n_gpu_layers else 0)
            for at, gpu in enumerate(gpus)
        ),
    )


def gpu_of_layers(n_layers: int, n_gpu_layers: int, shares: Seq[float]) -> tuple[int | None, ...]:
    """Which GPU has each layer, the output layer being the last; None: main memory."""
    n_gpu_layers = min(n_gpu_layers, n_layers)
    first = n_layers - n_gpu_layers
    ends = [end / sum(shares) for end in itertools.accumulate(shares)]
    last = max(gpu for gpu, share in enumerate(shares) if share > 0)
    return tuple(
        None if layer < first else min(last, bisect.bisect_right(ends, (layer - first) / n_gpu_layers))
        for layer in range(n_layers)
    )


def _layer_of(name: str, n_layers: int) -> int:
    """A tensor's layer; what belongs to none is the output layer's."""
    block = block_of(name)
    if block is not None:
        return min(block, n_layers - 1)
    return 0 if name.startswith(_FIRST_LAYER) else n_layers - 1


def _kv_bytes(card: ModelCard, layers: Layers, demand: Demand, plan: Plan) -> list[int]:
    """Of each layer; the output layer has none."""
    own = layer_memory_bytes(card, demand, plan)
    return [*own, *([0] * (layers.n_layers - len(own)))]


def _gpu_compute_bytes(
    card: ModelCard, layers: Layers, demand: Demand, plan: Plan, owners: Seq[int | None], *, is_pipeline: bool
) -> int:
    """On each GPU: the graph, what it copies of the weights in main memory for long steps, and what waits for it.

    The copies are one tensor at a time (ggml_backend_sched_split_graph begins a new split for each), and none of the
    output layer's, which computes a few rows only. Several GPUs that have all layers, whole ones, work as a pipeline,
    which has four copies of what goes in; also where one of them has a share of 0.
    """
    graph = planned_graph(demand, plan)
    borrowed = [layers.largest_bytes[layer] for layer, owner in enumerate(owners[:-1]) if owner is None]
    waiting = (PIPELINE_COPIES - 1) * graph_input_bytes(card, graph) if is_pipeline else 0
    return graph_bytes(card, graph) + max(borrowed, default=0) + waiting
