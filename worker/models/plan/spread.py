"""The bytes in main memory and on each GPU, by what the library's dry run says.

Owns the sums of each place, and whether the file is mapped: a dry run maps nothing. Pure.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from worker.models.facts.info import ModelInfo
from worker.models.plan.buffers import Buffer, BufferSizes

MAX_SHARE_TWICE = 0.1
"""The largest share of the weights that may be in main memory twice. A mapped file is there as a whole, and repacked
weights are there a second time. If these are more than this share, the file is read and not mapped."""

MAPPED_ALIGNMENT = 32
"""TENSOR_ALIGNMENT (ggml-impl.h): ggml ends the process where a mapping's first weight begins elsewhere."""


@dataclass(frozen=True, slots=True)
class Share:
    """The bytes in one place."""

    weights_bytes: int = 0
    kv_bytes: int = 0
    compute_bytes: int = 0
    """The compute buffers, with the logits that are kept to be read."""

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.compute_bytes

    def __add__(self, other: "Share") -> "Share":
        return Share(
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


def spread(info: ModelInfo, buffers: BufferSizes, gpu_names: Seq[str]) -> tuple[InMain, Share, tuple[Share, ...]]:
    """Return the weights in main memory, all that is there, and what is on each GPU."""
    gpus = tuple(_part_of(one for one in buffers.buffers if one.is_on(name)) for name in gpu_names)
    rest = BufferSizes(tuple(one for one in buffers.buffers if not any(one.is_on(name) for name in gpu_names)))
    in_main = _in_main(info, rest, sum(gpu.weights_bytes for gpu in gpus))
    others = _part_of(one for one in rest.buffers if one.kind != "model")
    return in_main, others + Share(in_main.total_bytes), gpus


def _part_of(buffers: Iterable[Buffer]) -> Share:
    weights_bytes = kv_bytes = compute_bytes = 0
    for buffer in buffers:
        match buffer.kind:
            case "model":
                weights_bytes += buffer.size_bytes
            case "KV" | "RS":
                kv_bytes += buffer.size_bytes
            case _:
                compute_bytes += buffer.size_bytes
    return Share(weights_bytes, kv_bytes, compute_bytes)


def _in_main(info: ModelInfo, rest: BufferSizes, gpu_bytes: int) -> InMain:
    as_in_file = sum(one.size_bytes for one in rest.buffers if one.kind == "model" and one.is_as_in_file)
    repacked = rest.of_kind("model") - as_in_file
    file_bytes = sum(tensor.n_bytes for tensor in info.loaded_tensors)
    # A tied embedding is on a GPU once more.
    gpu_bytes -= info.tied_bytes if gpu_bytes else 0
    return InMain(
        as_in_file=as_in_file,
        repacked=repacked,
        left_in_file=max(0, file_bytes - gpu_bytes - as_in_file) if repacked else 0,
        can_be_mapped=info.alignment % MAPPED_ALIGNMENT == 0,
    )
