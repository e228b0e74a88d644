"""The settings about GPUs, which must go together: --device, --gpu-layers, --split-mode, --tensor-split, --main-gpu.

Whether there are as many GPUs is found out when the model is loaded. Pure.
"""

import re

from worker.errors import UsageError

SHARES_PATTERN = r"[0-9]{1,6}(\.[0-9]{1,6})?(,[0-9]{1,6}(\.[0-9]{1,6})?){0,63}"


def shares(text: str | None) -> tuple[float, ...]:
    """`3,1` as numbers; empty for none."""
    return tuple(map(float, text.split(","))) if text else ()


def wants_layers(gpu_layers: str) -> bool:
    """Whether --gpu-layers asks for layers on a GPU, so that there must be one."""
    return gpu_layers == "all" or (gpu_layers.isdecimal() and int(gpu_layers) > 0)


def wants_no_layers(gpu_layers: str) -> bool:
    """Whether --gpu-layers says that none may be there."""
    return gpu_layers.isdecimal() and int(gpu_layers) == 0


def check_layers(*, device: str, gpu_layers: str, split_mode: str, require_full_offload: bool) -> None:
    """Raises: UsageError where --gpu-layers contradicts another flag."""
    if device == "cpu" and wants_layers(gpu_layers):
        raise UsageError(f"--gpu-layers {gpu_layers} needs a GPU: leave it out, or --device cpu")
    if not wants_no_layers(gpu_layers) or device == "cpu":
        return
    for flag, is_given in (
        (f"--split-mode {split_mode}", split_mode != "none"),
        ("--require-full-offload", require_full_offload),
    ):
        if is_given:
            raise UsageError(f"{flag} needs layers on a GPU: leave it out, or --gpu-layers {gpu_layers}")


def check_split(*, device: str, split_mode: str, tensor_split: str | None, main_gpu: int | None) -> None:
    """Raises: UsageError for wishes that cannot all hold."""
    if split_mode == "none":
        if tensor_split is not None:
            raise UsageError("--tensor-split needs --split-mode layer or row: with none one GPU has the whole model")
        if main_gpu is not None and re.search(r"[0-9]|cpu", device):
            raise UsageError(f"--main-gpu {main_gpu} does not go with --device {device}: each chooses a device")
        return
    if device == "cpu":
        raise UsageError(f"--split-mode {split_mode} needs GPUs: leave it out, or --device cpu")
    if main_gpu is not None:
        raise UsageError(f"--main-gpu {main_gpu} needs --split-mode none: otherwise all GPUs have a part")
