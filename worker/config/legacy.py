"""The spellings of the predecessor's command lines, and what they mean here (docs/protocol.md 1).

Owns: their names, and the one device they choose together. Refuses to know: how an argument list is parsed.
"""

import re
from collections.abc import Mapping
from typing import Any

from worker.config.option import shown
from worker.config.settings import flag_name
from worker.errors import UsageError

DEVICE_NUMBERS = ("gpu_device", "cuda_device", "metal_device", "gpu")
BACKENDS = ("cpu", "cuda", "metal", "accelerate")
IGNORED_VALUES = ("hive_url", "queen_url", "kv_cache_size_mb")
IGNORED_SWITCHES = ("local_mode",)


def device_asked_for(device: str | None, backend: str | None, numbers: Mapping[str, str]) -> str | None:
    """What `--device` says, or would have said in today's words; None when no flag chooses a device.

    A named device wins. With a backend, an integer numbers that backend's devices (the CPU has no number);
    without one it is a GPU index. `numbers` holds the legacy integer flags that were given.
    Raises: UsageError for an unknown backend, a number outside 0..999, and numbers that disagree.
    """
    if backend is not None and backend not in BACKENDS:
        raise UsageError(f"--backend: {shown(backend)} is not one of {', '.join(BACKENDS)}")
    number = _agreed_number(numbers)
    if device is not None:
        if backend is None or not device.isdecimal():
            return device
        number = _number("device", device)
    if backend is None:
        return None if number is None else str(number)
    return _numbered(backend, number)


def ignored(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Flags that were given and mean nothing here, by name only: their values may be secrets."""
    return tuple(flag_name(name) for name in (*IGNORED_VALUES, *IGNORED_SWITCHES) if params.get(name))


def _agreed_number(numbers: Mapping[str, str]) -> int | None:
    agreed: int | None = None
    for name, text in numbers.items():
        number = _number(name, text)
        if agreed is not None and number != agreed:
            raise UsageError(f"{flag_name(name)}: {number} contradicts the other device flag's {agreed}; give one")
        agreed = number
    return agreed


def _number(name: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,3}", text):
        raise UsageError(f"{flag_name(name)}: {shown(text)} is not a device number; allowed is 0..999")
    return int(text)


def _numbered(backend: str, number: int | None) -> str:
    if backend in {"cpu", "accelerate"}:
        return "cpu"
    if backend == "cuda":
        return "cuda" if number is None else f"cuda:{number}"
    if number:
        raise UsageError(f"--backend metal: there is no device {number}; Metal has one, number 0")
    return "metal"
