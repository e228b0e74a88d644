"""An image from its description: the wheel, the base, the build, and what came of it in seconds and bytes.

A base that cannot be pulled is made, so that the Dockerfiles are used unchanged on a machine that reaches a Debian
mirror and nothing else. What is made leaves out what Debian's own slim images leave out, so that sizes can be compared.

How this machine reaches its package index (mirrors, its own certificates) is mounted while the image is built: nothing
of it stays in the image, and the Dockerfiles know nothing of it. Proxies of the environment are passed on by buildah.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tools import CHECKOUT
from tools.images.images import MB, Image
from tools.images.store import Skipped, Store

PIP = Path("/etc/xdg/pip")
"""The place where pip looks for the system's configuration on every distribution; distributions have no file there."""
_AUTHORITIES, _CONSTRAINTS = "authorities.pem", "constraints-{}.txt"

_PULL_TIMEOUT_S = 600.0
_DEBIAN = re.compile(r"debian:(?P<suite>[a-z]+)(?:-slim)?")
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
_SLIM_EXCLUDES = ("doc", "man", "info", "locale", "groff", "lintian", "linda")
"""Folders of /usr/share; the licences in doc stay."""
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
    arguments = {name: provide(store, base) for name, base in image.bases.items()}
    base = arguments["BASE"]
    arguments |= {"WHEEL": "prebuilt" if image.has_wheel else "build"}
    options = [*(f"--build-arg={name}={value}" for name, value in arguments.items()), *pip_mounts(store)]
    began_s = time.monotonic()
    store.ask(
        *("buildah", "build", "--format=docker", "--layers", "--pull-never", *options),
        *(f"--tag={image.tag}", f"--file={image.dockerfile}", str(CHECKOUT)),
    )
    return Built(image, store, time.monotonic() - began_s, base)


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


# ── bases: pulled where a registry answers, else made of Debian's packages under the same name ───


def provide(store: Store, name: str) -> str:
    """Make the image `name` be in the store, and return the name that it has there. Raises: Skipped.

    An image that is made here cannot have the digest of the published one, so its name has none.
    """
    bare = _DIGEST.sub("", name)
    if _has(store, name) or store.run("podman", "pull", "--quiet", name, timeout_s=_PULL_TIMEOUT_S).returncode == 0:
        return name
    if _has(store, bare):
        return bare
    debian = _DEBIAN.fullmatch(bare)
    if debian is None or shutil.which("debootstrap") is None:
        raise Skipped(f"{name} cannot be pulled, and debootstrap is not installed or cannot make it")
    _bootstrap(store, debian["suite"], bare)
    return bare


def _has(store: Store, name: str) -> bool:
    return store.run("podman", "image", "exists", name).returncode == 0


def _bootstrap(store: Store, suite: str, name: str) -> None:
    mirror: list[str] = []
    if shutil.which("apt-get"):
        # This machine's own mirror of Debian, where apt has one.
        asked = ("apt-get", "indextargets", "--format", "$(REPO_URI)", "Label: Debian", "Component: main")
        mirror = store.ask(*asked).split()[:1]
    with tempfile.TemporaryDirectory(dir=store.folder) as folder:
        root, archive = Path(folder) / "root", Path(folder) / "root.tar"
        store.ask("debootstrap", "--variant=minbase", suite, str(root), *mirror)
        _slim(root)
        store.ask("tar", "-C", str(root), "-cf", str(archive), ".")
        store.ask("podman", "import", "--quiet", "--change", "CMD=bash", str(archive), name)


def _slim(root: Path) -> None:
    """Remove what debootstrap downloaded, and now and in later installations files that are not used in a container."""
    rules = [f"path-exclude=/usr/share/{folder}/*" for folder in _SLIM_EXCLUDES]
    rules.append("path-include=/usr/share/doc/*/copyright")
    (root / "etc/dpkg/dpkg.cfg.d/slim").write_text("\n".join(rules) + "\n", encoding="utf-8")
    for folder in _SLIM_EXCLUDES[1:]:
        shutil.rmtree(root / "usr/share" / folder, ignore_errors=True)
    for path in (root / "usr/share/doc").rglob("*"):
        if not path.is_dir() and path.name != "copyright":
            path.unlink()
    for folder in ("var/cache/apt", "var/lib/apt/lists", "var/log"):
        for path in (root / folder).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
