"""The spellings of the predecessor's command lines, and what they mean here (docs/protocol.md#command-line).

Owns: their names, and the one device they choose together.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import rich_click as click

from worker.config.option import SettingOption, TextType, flag_name
from worker.errors import UsageError

DEVICE_NUMBERS = ("gpu_device", "cuda_device", "metal_device", "gpu")
BACKENDS = {"cpu": "cpu", "cuda": "cuda", "metal": "metal", "accelerate": "cpu"}
"""Their names for backends, and ours."""
IGNORED_VALUES = ("hive_url", "queen_url", "kv_cache_size_mb")
IGNORED_SWITCHES = ("local_mode",)


def options() -> list[SettingOption]:
    """Flags that work and that no help names."""
    kinds: tuple[tuple[Sequence[str], dict[str, Any]], ...] = (
        (DEVICE_NUMBERS, {"type": TextType(r"[0-9]{1,3}", "0..999")}),
        (("backend",), {"type": click.Choice(list(BACKENDS))}),
        (IGNORED_VALUES, {}),
        (IGNORED_SWITCHES, {"is_flag": True}),
    )
    return [SettingOption([flag_name(name)], hidden=True, **kind) for names, kind in kinds for name in names]


def device_asked_for(flags: Mapping[str, Any]) -> str | None:
    """Return the value of `--device`, or the one that today's flags would have; None when no flag chooses a device.

    `flags` are those that were given. A named device wins. With a backend, an integer numbers that backend's devices
    (the CPU has no number); without one it is a GPU index.
    Raises: UsageError for numbers that disagree, and for one that Metal does not have.
    """
    number = _agreed_number({name: int(flags[name]) for name in DEVICE_NUMBERS if name in flags})
    device: str | None = flags.get("device")
    backend = BACKENDS.get(flags.get("backend", ""))
    if backend is None or (device is not None and not device.isdecimal()):
        return device or (None if number is None else str(number))
    if device is not None:
        number = int(device)
    if backend == "cuda" and number is not None:
        return f"cuda:{number}"
    if backend == "metal" and number:
        raise UsageError(f"--backend metal: there is no device {number}; Metal has one, number 0")
    return backend


def ignored(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Flags that were given and mean nothing here, by name only: their values may be secrets."""
    return tuple(flag_name(name) for name in (*IGNORED_VALUES, *IGNORED_SWITCHES) if params.get(name))


def _agreed_number(numbers: Mapping[str, int]) -> int | None:
    agreed = next(iter(numbers.values()), None)
    for name, number in numbers.items():
        if number != agreed:
            raise UsageError(f"{flag_name(name)}: {number} contradicts the other device flag's {agreed}; give one")
    return agreed
