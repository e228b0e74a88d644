"""What is told of a model's way onto devices: how it may be split, how many layers are there, what was not as planned.

Owns these parts of the contract's frames; knows nothing of devices or how they are chosen.
"""

from typing import Literal

import msgspec

SplitMode = Literal["none", "layer", "row"]
"""llama.cpp's: all on one GPU; layers over all GPUs; each layer's rows over all GPUs."""


class OffPlan(msgspec.Struct, frozen=True, array_like=True):
    """A device on which more or less lies than was planned."""

    device: str
    planned_bytes: int
    allocated_bytes: int
    """By the library's own account."""
    taken_bytes: int | None = None
    """By how much the device's free memory has fallen; None where that says nothing of the model."""


class Offload(msgspec.Struct, frozen=True, array_like=True):
    """Of a loaded model. The layers count with the output layer, as llama.cpp counts them."""

    gpu_layers: int = 0
    layers_total: int = 0
    tensor_split: tuple[float, ...] = ()
    """The shares of the GPUs that have the model together; empty where one device has it."""
    off_plan: tuple[OffPlan, ...] = ()
