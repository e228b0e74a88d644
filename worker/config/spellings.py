"""Guesses at the flag or variable that a user meant by one that does not exist.

These are hints in an error line, not aliases, which settings.py has. Pure, but for the file of llama-server's flags
beside it.
"""

import difflib
from collections.abc import Collection, Mapping
from functools import cache
from importlib.resources import files

import msgspec

from worker.config.option import is_service_address
from worker.config.settings import options

OF_A_REQUEST = frozenset({"--seed", "--temperature", "--top-k", "--top-p", "--min-p", "--repetition-penalty", "--stop"})
"""Fields for which `serve` has no flag, because each request sets them."""

PREFIX = "LLORCH_"
READ_ELSEWHERE = {"LLORCH_RUN_ID", "LLORCH_PROOF_DIR", "LLORCH_WHEELS", "LLORCH_CUDA_ARCHITECTURES"}
"""Variables that are no settings: those of other commands and of the build."""

_OF_A_SERVICE = (
    "Kubernetes sets it for a service named llorch, so it is ignored: give the port with --port or in the config file, "
    "or rename the service"
)


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
    known = llama_server_flags()
    meant = [target for target, theirs in known.ours.items() if dashed in theirs]
    for target in meant:
        if target.split(maxsplit=1)[0] in ours:
            return f"did you mean {target}?"
    if meant and meant[0] in OF_A_REQUEST:
        return f"each request sets its own {meant[0][2:].replace('-', '_')}"
    if said := next((said for said, theirs in known.advice.items() if dashed in theirs), ""):
        return said
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
