"""An image from its description: the wheel, the base, the build, and what came of it in seconds and bytes.

How this machine reaches its package index (mirrors, its own certificates) is mounted while the image is built: nothing
of it stays in the image, and the Dockerfiles know nothing of it. Proxies of the environment are passed on by buildah.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tools import CHECKOUT
from tools.images.bases import provide, stages
from tools.images.images import MB, Image
from tools.images.store import Skipped, Store

PIP = Path("/etc/xdg/pip")
"""The place where pip looks for the system's configuration on every distribution; distributions have no file there."""
_AUTHORITIES, _CONSTRAINTS = "authorities.pem", "constraints-{}.txt"

_TRUST_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")


@dataclass(frozen=True)
class Built:
    """An image in the store."""

    image: Image
    store: Store
    build_s: float
    base: str

    @cached_property
    def inspected(self) -> Any:  # Any: JSON
        (found,) = json.loads(self.store.ask("podman", "image", "inspect", self.image.tag))
        return found

    @property
    def size_bytes(self) -> int:
        return int(self.inspected["Size"])

    @property
    def own_bytes(self) -> int:
        """The size without the base."""
        (base,) = json.loads(self.store.ask("podman", "image", "inspect", self.base))
        return self.size_bytes - int(base["Size"])

    @property
    def sizes(self) -> str:
        """The time of the build, and the sizes of the layers that are not empty, the base's first."""
        history = json.loads(self.store.ask("podman", "history", "--format", "json", self.image.tag))
        layers = " + ".join(f"{layer['size'] / MB:.1f}" for layer in reversed(history) if layer["size"])
        own = f"{self.size_bytes / MB:.1f} MB, {self.own_bytes / MB:.1f} of them ours"
        return f"{self.build_s:.0f} s; {own}; layers {layers}"


def build(store: Store, image: Image) -> Built:
    """Build the image in the store, from layers that are there where nothing has changed.

    Raises: Skipped; AssertionError with the builder's last lines.
    """
    _place_wheel(image)
    arguments = image.all_arguments
    file = stages(image.dockerfile.read_text(encoding="utf-8"), arguments)
    provided = {name: provide(store, name) for name in file.images}
    arguments |= {name: provided[value] for name, value in file.arguments.items() if value in provided}
    options = [f"--build-arg={name}={value}" for name, value in arguments.items()]
    options += pip_mounts(store)
    began_s = time.monotonic()
    store.ask(
        *("buildah", "build", "--format=docker", "--layers", "--pull-never", *options),
        *(f"--tag={image.tag}", f"--file={image.dockerfile}", str(CHECKOUT)),
    )
    return Built(image, store, time.monotonic() - began_s, provided[file.last_base])


def _place_wheel(image: Image) -> None:
    """Have the wheel where the Dockerfile copies it from, unless that builds its own. Raises: Skipped."""
    if image.wheel_comes_from == "outside":
        shutil.rmtree(image.wheels, ignore_errors=True)
        image.wheels.mkdir(parents=True)
        command = [str(CHECKOUT / "scripts" / "build_llama.sh"), *image.wheel]
        environment = {**os.environ, "PYTHON": sys.executable}
        made = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        shutil.copy(made.stdout.strip(), image.wheels)
    elif image.wheel_comes_from == "before" and not image.has_wheel:
        raise Skipped(f"no wheel in {image.wheels.relative_to(CHECKOUT)}: scripts/build_llama.sh makes it")


def pip_mounts(store: Store) -> list[str]:
    """The options that let pip in a container or in a build reach what pip reaches here."""
    return [f"--volume={volume}:ro" for volume in _mounts(store.folder / "pip")]


def _mounts(folder: Path) -> Iterator[str]:
    """Volumes with pip's settings, its certificates, and the folders that it takes packages from."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings = _pip_settings()
    named = [settings.get("cert"), *(os.environ.get(name) for name in _TRUST_VARIABLES)]
    if bundle := next((path for path in named if path and Path(path).is_file()), None):
        shutil.copy(bundle, folder / _AUTHORITIES)
        settings["cert"] = str(PIP / _AUTHORITIES)
    if files := settings.get("constraint", "").split():
        for number, constraints in enumerate(files):
            shutil.copy(constraints, folder / _CONSTRAINTS.format(number))
        settings["constraint"] = " ".join(str(PIP / _CONSTRAINTS.format(number)) for number in range(len(files)))
    lines = [f"{name} = {value}\n" for name, value in settings.items()]
    (folder / "pip.conf").write_text("".join(["[global]\n", *lines]), encoding="utf-8")
    yield f"{folder}:{PIP}"
    for path in _local_folders(settings):
        yield f"{path}:{path}"


def _pip_settings() -> dict[str, str]:
    """The output of `pip config list` on this machine; the environment's values come after the files' and so win."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    settings = re.findall(r"^(global|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE)
    return {name: value for place, name, value in sorted(settings, key=lambda found: found[0] == ":env:")}


def _local_folders(settings: dict[str, str]) -> list[Path]:
    """Folders that pip takes packages from; a mirror may be one."""
    texts = [settings.get(name, "") for name in ("index-url", "extra-index-url", "find-links")]
    named = [Path(word.removeprefix("file://")) for text in texts for word in text.split()]
    # A local index: its pages lie in `simple`, what they point to beside that.
    whole = [path.parent if path.name == "simple" else path for path in named]
    return sorted({path for path in whole if path.is_absolute() and path.is_dir()})
