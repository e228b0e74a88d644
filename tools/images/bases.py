"""The images that ours begin with: pulled where a registry answers, else made of Debian's packages under the same name.

So the Dockerfiles are used unchanged on a machine that reaches a Debian mirror and nothing else. What is made leaves
out what Debian's own slim images leave out, so that sizes can be compared.
"""

import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.images.store import Skipped, Store

_PULL_TIMEOUT_S = 600.0

_ARGUMENT = re.compile(r"ARG\s+(\w+)=(\S+)")
_FROM = re.compile(r"FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE)
_COPY = re.compile(r"COPY\s+(?:--\S+\s+)*--from=(\S+)", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_DEBIAN = re.compile(r"debian:(?P<suite>[a-z]+)(?:-slim)?")
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
_SLIM_EXCLUDES = ("doc", "man", "info", "locale", "groff", "lintian", "linda")
"""Folders of /usr/share; the licences in doc stay."""


@dataclass(slots=True)
class Stages:
    """The stages of a Dockerfile in its order, the build arguments filled in."""

    parents: dict[str, str] = field(default_factory=dict)
    """A stage → what it begins with: a stage before it, or an image."""
    copied: dict[str, list[str]] = field(default_factory=dict)
    """A stage → the stages that it copies files from."""
    arguments: dict[str, str] = field(default_factory=dict)
    """The build arguments before the first stage, with their values."""

    @property
    def images(self) -> list[str]:
        """The external images that the last stage, the shipped one, needs through any stages."""
        wanted = [self.last]
        for name in wanted:
            if name in self.parents:
                wanted += [self.parents[name], *self.copied[name]]
        return [name for name in dict.fromkeys(wanted) if name not in {*self.parents, "scratch"}]

    @property
    def last(self) -> str:
        return list(self.parents)[-1]

    @property
    def last_base(self) -> str:
        """The image under the last stage."""
        name = self.last
        while name in self.parents:
            name = self.parents[name]
        return name


def stages(dockerfile: str, arguments: Mapping[str, str]) -> Stages:
    """Read a Dockerfile's text. Raises: KeyError for a variable in FROM that has neither a default nor an argument."""
    found = Stages()
    values = found.arguments
    for line in dockerfile.splitlines():
        if (argument := _ARGUMENT.match(line)) and not found.parents:
            values[argument[1]] = arguments.get(argument[1], argument[2])
        if begins := _FROM.match(line):
            name = begins[2] or f"stage {len(found.parents)}"
            found.parents[name] = _VARIABLE.sub(lambda variable: values[variable[1]], begins[1])
            found.copied[name] = []
        if copies := _COPY.match(line):
            found.copied[found.last].append(copies[1])
    return found


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
