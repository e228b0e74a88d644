"""The settings about several GPUs, which must go together: --split-mode, --tensor-split, --main-gpu and --device.

Whether there are as many GPUs is found out when the model is loaded. Pure.
"""

import re

from worker.errors import UsageError

SHARES_PATTERN = r"[0-9]{1,6}(\.[0-9]{1,6})?(,[0-9]{1,6}(\.[0-9]{1,6})?){0,63}"


def shares(text: str | None) -> tuple[float, ...]:
    """`3,1` as numbers; empty for none."""
    return tuple(map(float, text.split(","))) if text else ()


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
