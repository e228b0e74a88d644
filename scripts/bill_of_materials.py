"""Print a bill of materials in CycloneDX: the Python packages of an environment, and on request Debian's packages.

    python bill_of_materials.py [--debian] [FOLDER [NAME==VERSION ...]]

FOLDER is the environment's site-packages; without it, it is this Python's. NAME==VERSION are packages from PyPI whose
files lie elsewhere. The same packages give the same text. Every image has its own bill, at
/opt/llorch-worker/bill-of-materials.cdx.json, and `make bill` writes the one of a checkout. Needs nothing but Python.
"""

import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import quote

_WORKER = "llorch-worker"
_DEBIAN = ("dpkg-query", "--show", "--showformat", r"${db:Status-Status} ${Package} ${Version} ${Architecture}\n")


def bill(folder: str | None, others: Sequence[str] = (), *, with_debian: bool = False) -> dict[str, object]:
    """The document. Raises: ValueError for one of the others without a version."""
    found = {_name(one): one for one in distributions(**({"path": [folder]} if folder else {}))}
    worker = found.pop(_WORKER, None)
    components = [_of_python(found[name]) for name in sorted(found)]
    components += [_component(*_split(other)) for other in sorted(others)]
    document: dict[str, object] = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1}
    if worker is not None:
        document["metadata"] = {"component": {**_of_python(worker), "type": "application"}}
    return {**document, "components": [*components, *(_of_debian() if with_debian else [])]}


def _name(one: Distribution) -> str:
    return re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower()


def _split(requirement: str) -> tuple[str, str]:
    name, equals, version = requirement.partition("==")
    if not equals or not version:
        raise ValueError(f"{requirement} has no version: give NAME==VERSION")
    return name, version


def _of_python(one: Distribution) -> dict[str, object]:
    return _component(_name(one), one.version, one.metadata.get("License-Expression"))


def _component(name: str, version: str, licence: str | None = None) -> dict[str, object]:
    purl = f"pkg:pypi/{name}@{quote(version)}"
    licences = {"licenses": [{"expression": licence}]} if licence else {}
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, **licences}


def _of_debian() -> Iterator[dict[str, object]]:
    """Debian's packages that are installed; none where the system has another packager."""
    if not shutil.which(_DEBIAN[0]):
        return
    distribution = platform.freedesktop_os_release()
    suite = f"{distribution['ID']}-{distribution.get('VERSION_ID', 'sid')}"
    listed = subprocess.run(_DEBIAN, capture_output=True, text=True, check=True).stdout
    for line in sorted(listed.splitlines()):
        status, name, version, architecture = line.split()
        if status == "installed":
            purl = f"pkg:deb/{distribution['ID']}/{name}@{quote(version)}?arch={architecture}&distro={suite}"
            yield {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def main(arguments: list[str]) -> int:
    with_debian = arguments[:1] == ["--debian"]
    arguments = arguments[with_debian:]
    folder = arguments[0] if arguments else None
    if folder is not None and not Path(folder).is_dir():
        sys.stderr.write(f"bill_of_materials: there is no folder {folder}: give the environment's site-packages\n")
        return 2
    try:
        document = bill(folder, arguments[1:], with_debian=with_debian)
    except ValueError as error:
        sys.stderr.write(f"bill_of_materials: {error}\n")
        return 2
    sys.stdout.write(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
