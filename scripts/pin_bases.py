"""The base images of the Dockerfiles, pinned by their digests.

    python scripts/pin_bases.py [check]

Without `check` it asks Docker Hub for today's digest of every base and writes `name:tag@sha256:…` into the Dockerfiles.
`check` asks no server: it exits with 1 and names the bases that have no digest, so that nothing is released on them.
The digest is that of the list of all platforms. Needs nothing but Python.
"""

import json
import re
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BASE = re.compile(r"^(ARG (?:BASE|TOOLKIT)=)([\w./-]+:[\w.-]+)(@sha256:[0-9a-f]{64})?$", re.MULTILINE)
_KINDS = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"
_AUTH, _REGISTRY = "https://auth.docker.io", "https://registry-1.docker.io"
_TIMEOUT_S = 30


def dockerfiles() -> list[Path]:
    return sorted(ROOT.glob("Dockerfile.*"))


def unpinned(files: list[Path]) -> Iterator[str]:
    """Yield a line for each base without a digest."""
    for file in files:
        for _, name, digest in _BASE.findall(file.read_text(encoding="utf-8")):
            if not digest:
                yield f"{file.name}: {name}"


def pinned(text: str, digests: dict[str, str]) -> str:
    """A Dockerfile's text with each base's digest."""
    return _BASE.sub(lambda base: f"{base[1]}{base[2]}@{digests[base[2]]}", text)


def bases(text: str) -> list[str]:
    return [name for _, name, _ in _BASE.findall(text)]


def digest_of(image: str, auth: str = _AUTH, registry: str = _REGISTRY) -> str:
    """The digest that Docker Hub has for a tag today. Raises: OSError; ValueError for an answer without one."""
    name, _, tag = image.partition(":")
    repository = name if "/" in name else f"library/{name}"
    scope = f"{auth}/token?service=registry.docker.io&scope=repository:{repository}:pull"
    with urllib.request.urlopen(scope, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - an address of this file
        token = json.load(answer)["token"]
    request = urllib.request.Request(  # noqa: S310 - an address of this file
        f"{registry}/v2/{repository}/manifests/{tag}",
        method="HEAD",
        headers={"Authorization": f"Bearer {token}", "Accept": _KINDS},
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - an address of this file
        digest = str(answer.headers["Docker-Content-Digest"])
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise ValueError(f"the registry named no digest ({digest})")
    return digest


def main(arguments: list[str]) -> int:
    if arguments == ["check"]:
        missing = list(unpinned(dockerfiles()))
        for line in missing:
            sys.stderr.write(f"{line} has no digest: run python scripts/pin_bases.py\n")
        return 1 if missing else 0
    if arguments:
        sys.stderr.write("usage: pin_bases.py [check]\n")
        return 2
    texts = {file: file.read_text(encoding="utf-8") for file in dockerfiles()}
    digests: dict[str, str] = {}
    for name in sorted({name for text in texts.values() for name in bases(text)}):
        try:
            digests[name] = digest_of(name)
        except (OSError, ValueError, KeyError) as error:
            sys.stderr.write(f"pin_bases: {name}: {error}; nothing was changed\n")
            return 1
        sys.stdout.write(f"{name}@{digests[name]}\n")
    for file, text in texts.items():
        file.write_text(pinned(text, digests), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
