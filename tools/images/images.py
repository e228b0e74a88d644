"""The images, one description each: what is built of what, and what must be true of it. Everything else reads these."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tools import CHECKOUT

REPOSITORY = "llorch-worker"


@dataclass(frozen=True, slots=True)
class Image:
    name: str
    """The tag, and the end of Dockerfile.NAME."""
    wheel: tuple[str, ...]
    """The arguments of scripts/build_llama.sh: the backend first."""
    goal_bytes: int
    """The largest size added to the base, unpacked, as podman and docker show it."""
    goal_has_base: bool = False
    """The goal is the whole image's, base and all."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Build arguments beside WHEEL."""
    here: tuple[str, ...] = ()
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
    """This machine's build_llama.sh, the Dockerfile's own stage, or a wheel that lies in `wheels` already; if
    it is not built outside, one that lies there is used."""

    @property
    def tag(self) -> str:
        return f"{REPOSITORY}:{self.name}"

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
    def all_arguments(self) -> dict[str, str]:
        return {"WHEEL": "prebuilt" if self.has_wheel else "build", **self.arguments}


MB = 1000**2

_GLIBC_OF_BOOKWORM = (2, 36)


def _is_old_enough() -> bool:
    """True if programs compiled here run on Debian 12. With a newer glibc they may need symbols that Debian 12
    lacks."""
    name, version = platform.libc_ver()
    return name == "glibc" and tuple(map(int, version.split("."))) <= _GLIBC_OF_BOOKWORM


_ALL = (
    Image(
        "cpu",
        wheel=("cpu", "--portable"),
        goal_bytes=250 * MB,
        goal_has_base=True,
        is_for_every_processor=True,
        wheel_comes_from="outside" if _is_old_enough() else "inside",
    ),
    Image(
        "cuda",
        wheel=("cuda", "--portable"),
        goal_bytes=2500 * MB,
        here=("--env=LLORCH_DEVICE=cpu",),
        refusal="--device cuda is not there",
        missing="there is no NVIDIA driver here",
        # An hour of compiling: not something to begin unasked.
        wheel_comes_from="before",
    ),
    Image(
        "metal",
        wheel=("vulkan", "--portable"),
        goal_bytes=400 * MB,
        missing="Vulkan's drivers find no GPU",
        has_software_gpu=True,
        # Vulkan's headers must be newer than many a machine's.
        wheel_comes_from="inside",
    ),
)
IMAGES = {image.name: image for image in _ALL}
