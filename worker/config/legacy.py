"""The spellings of the predecessor's command lines, and what they mean here (docs/protocol.md#command-line).

Owns: their names, and the one device they choose together.
"""

from collections.abc import Mapping
from typing import Any

import rich_click as click

from worker.config.option import SettingOption, Text
from worker.config.settings import flag_name
from worker.errors import UsageError

DEVICE_NUMBERS = ("gpu_device", "cuda_device", "metal_device", "gpu")
BACKENDS = ("cpu", "cuda", "metal", "accelerate")
IGNORED_VALUES = ("hive_url", "queen_url", "kv_cache_size_mb")
IGNORED_SWITCHES = ("local_mode",)


def options() -> list[SettingOption]:
    """Flags that work and that no help names."""
    number = Text(r"[0-9]{1,3}", "0..999")
    return [
        *(SettingOption([flag_name(name)], type=number, hidden=True) for name in DEVICE_NUMBERS),
        SettingOption(["--backend"], type=click.Choice(BACKENDS), hidden=True),
        *(SettingOption([flag_name(name)], hidden=True) for name in IGNORED_VALUES),
        *(SettingOption([flag_name(name)], is_flag=True, hidden=True) for name in IGNORED_SWITCHES),
    ]


def device_asked_for(device: str | None, backend: str | None, numbers: Mapping[str, str]) -> str | None:
    """Return the value of `--device`, or the one that today's flags would have; None when no flag chooses a device.

    A named device wins. With a backend, an integer numbers that backend's devices (the CPU has no number);
    without one it is a GPU index. `numbers` holds the legacy integer flags that were given.
    Raises: UsageError for numbers that disagree, and for one that Metal does not have.
    """
    number = _agreed_number(numbers)
    if device is not None:
        if backend is None or not device.isdecimal():
            return device
        number = int(device)
    if backend is None:
        return None if number is None else str(number)
    return _numbered(backend, number)


def ignored(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Flags that were given and mean nothing here, by name only: their values may be secrets."""
    return tuple(flag_name(name) for name in (*IGNORED_VALUES, *IGNORED_SWITCHES) if params.get(name))


def _agreed_number(numbers: Mapping[str, str]) -> int | None:
    agreed: int | None = None
    for name, text in numbers.items():
        number = int(text)
        if agreed is not None and number != agreed:
            raise UsageError(f"{flag_name(name)}: {number} contradicts the other device flag's {agreed}; give one")
        agreed = number
    return agreed


def _numbered(backend: str, number: int | None) -> str:
    if backend in {"cpu", "accelerate"}:
        return "cpu"
    if backend == "cuda":
        return "cuda" if number is None else f"cuda:{number}"
    if number:
        raise UsageError(f"--backend metal: there is no device {number}; Metal has one, number 0")
    return "metal"
