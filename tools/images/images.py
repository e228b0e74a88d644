"""The images, one description each: what is built of what, and what must be true of it. Everything else reads these."""

import platform
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tools import CHECKOUT

_BASE = re.compile(r"^ARG (BASE|TOOLKIT)=(\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Image:
    name: str
    """The tag, and the end of Dockerfile.NAME."""
    wheel: Sequence[str]
    """The arguments of scripts/build_llama.sh: the backend first."""
    goal_bytes: int
    """The largest size added to the base, unpacked, as podman and docker show it."""
    goal_has_base: bool = False
    """The goal is the whole image's, base and all."""
    here: Sequence[str] = ()
    """Podman's options with which it serves without the GPU that it is for."""
    refusal: str = ""
    """The error without devices; empty if the image serves without them."""
    missing: str = ""
    """The reason why its backend has no device in a container that is given none, by `devices`: nothing that the image
    lacks."""
    has_software_gpu: bool = False
    """Its driver can compute on the processor, where a variable says so."""
    is_for_every_processor: bool = False
    """True if it must run on an x86-64 processor of 2008."""
    wheel_comes_from: Literal["outside", "inside", "before"] = "outside"
    """This machine's build_llama.sh if its glibc is old enough, the Dockerfile's own stage, or a wheel that lies in
    `wheels` already; if it is not built outside, one that lies there is used."""

    @property
    def tag(self) -> str:
        return f"llorch-worker:{self.name}"

    @property
    def dockerfile(self) -> Path:
        return CHECKOUT / f"Dockerfile.{self.name}"

    @property
    def wheels(self) -> Path:
        """The folder from which the Dockerfile takes a wheel that was built outside."""
        return CHECKOUT / "dist" / "wheels" / self.wheel[0]

    @property
    def has_wheel(self) -> bool:
        return any(self.wheels.glob("*.whl"))

    @property
    def bases(self) -> dict[str, str]:
        """The images that the Dockerfile begins with, by its arguments: the one under every stage that is shipped, and
        the one that compiles, unless a wheel is there."""
        found = dict(_BASE.findall(self.dockerfile.read_text(encoding="utf-8")))
        return {name: base for name, base in found.items() if name == "BASE" or not self.has_wheel}


MB = 1000**2
_GLIBC_OF_BOOKWORM = (2, 36)
"""Programs that are compiled with a newer glibc may need symbols that Debian 12 lacks."""


def _all() -> Iterator[Image]:
    for name, of in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items():
        library, version = platform.libc_ver()
        is_old_enough = library == "glibc" and tuple(map(int, version.split("."))) <= _GLIBC_OF_BOOKWORM
        image = Image(name, goal_bytes=of.pop("goal_mb") * MB, **of)
        is_outside = image.wheel_comes_from == "outside"
        yield replace(image, wheel_comes_from="inside") if is_outside and not is_old_enough else image


IMAGES = {image.name: image for image in _all()}
