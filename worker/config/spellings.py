"""Other spellings of flags and variables: the predecessor's, which work (docs/protocol.md#command-line), and a guess at
what a user meant by one that does not exist.
"""

import difflib
from collections.abc import Collection, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
import rich_click as click

from worker.config.option import SettingOption, TextType, flag_name, is_service_address
from worker.config.settings import options
from worker.errors import UsageError

OF_A_REQUEST = frozenset({"--seed", "--temperature", "--top-k", "--top-p", "--min-p", "--repetition-penalty", "--stop"})
"""Fields for which `serve` has no flag, because each request sets them."""

PREFIX = "LLORCH_"
READ_ELSEWHERE = {"LLORCH_RUN_ID", "LLORCH_PROOF_DIR", "LLORCH_WHEELS", "LLORCH_CUDA_ARCHITECTURES"}
"""Variables that are no settings: those of other commands and of the build."""

_OF_A_SERVICE = (
    "Kubernetes sets it for a service named llorch, so it is ignored: give the port with --port or in the config file, "
    "or rename the service"
)

DEVICE_NUMBERS = ("gpu_device", "cuda_device", "metal_device", "gpu")
BACKENDS = {"cpu": "cpu", "cuda": "cuda", "metal": "metal", "accelerate": "cpu"}
"""The predecessor's names for backends, and ours."""
IGNORED_VALUES = ("hive_url", "queen_url", "kv_cache_size_mb")
IGNORED_SWITCHES = ("local_mode",)


def legacy_options() -> list[SettingOption]:
    """Flags that work and that no help names."""
    number = TextType(r"[0-9]{1,3}", "0..999")
    return [
        *(SettingOption([flag_name(name)], hidden=True, type=number) for name in DEVICE_NUMBERS),
        SettingOption(["--backend"], hidden=True, type=click.Choice(list(BACKENDS))),
        *(SettingOption([flag_name(name)], hidden=True) for name in IGNORED_VALUES),
        *(SettingOption([flag_name(name)], hidden=True, is_flag=True) for name in IGNORED_SWITCHES),
    ]


def device_asked_for(flags: Mapping[str, Any]) -> str | None:
    """Return the value of `--device`, or the one that today's flags would have; None when no flag chooses a device.

    `flags` are those that were given. A named device wins. With a backend, an integer numbers that backend's devices
    (the CPU has no number); without one it is a GPU index.
    Raises: UsageError for numbers that disagree, and for one that Metal does not have.
    """
    number: int | None = None
    for name in DEVICE_NUMBERS:
        if name not in flags:
            continue
        if number not in (None, int(flags[name])):
            raise UsageError(
                f"{flag_name(name)}: {int(flags[name])} contradicts the other device flag's {number}; give one"
            )
        number = int(flags[name])
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


class Flags(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """llama-server's flags, by our flags that mean the same, and by the advice where none does."""

    ours: dict[str, tuple[str, ...]]
    advice: dict[str, tuple[str, ...]]


@cache
def llama_server_flags() -> Flags:
    return msgspec.toml.decode(files(__package__).joinpath("llama_server_flags.toml").read_bytes(), type=Flags)


def flag_hint(flag: str, ours: Collection[str]) -> str:
    """The hint that follows "no such option", such as `did you mean --model?`; empty if nothing is near.

    `ours` are the flags of the command that may be named.
    """
    dashed = flag[:2] + flag[2:].replace("_", "-")
    if dashed in ours:
        return f"did you mean {dashed}?"
    meant = [target for target, theirs in llama_server_flags().ours.items() if dashed in theirs]
    for target in meant:
        if target.split(maxsplit=1)[0] in ours:
            return f"did you mean {target}?"
    if meant and meant[0] in OF_A_REQUEST:
        return f"each request sets its own {meant[0][2:].replace('-', '_')}"
    for advice, theirs in llama_server_flags().advice.items():
        if dashed in theirs:
            return advice
    near = difflib.get_close_matches(dashed, ours, n=3, cutoff=0.65)
    return f"did you mean {' or '.join(near)}?" if near else ""


def is_llama_servers(flag: str) -> bool:
    """True for a flag by which llama-server is known to mean something."""
    known = llama_server_flags()
    return any(flag in theirs for theirs in (*known.ours.values(), *known.advice.values()))


def unread(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return (name, what to say of it) for each variable that looks like one of ours and gives no setting.

    Kubernetes puts the addresses of a service named llorch into every container of its namespace. Of these only the one
    that has a setting's name is reported.
    """
    known = ["LLORCH_CONFIG", *(name for option in options() for name in option.variables)]
    return [
        *((name, _OF_A_SERVICE) for name in known if is_service_address(name, environ.get(name, ""))),
        *(
            (name, _variable_hint(name, known))
            for name in sorted(environ)
            if name.startswith(PREFIX)
            and not name.startswith(f"{PREFIX}TEST_")
            and name not in READ_ELSEWHERE.union(known)
            and "_SERVICE_" not in name
            and "_PORT_" not in name
            and not is_service_address(name, environ[name])
        ),
    ]


def _variable_hint(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name.removeprefix(PREFIX), [one.removeprefix(PREFIX) for one in known], n=1)
    return f"no setting has this name; did you mean {PREFIX}{near[0]}?" if near else "no setting has this name"
