"""scripts/bill_of_materials.py: every package is in it once, with its version; the same packages give the same text."""

import json
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from worker import __version__

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "bill_of_materials.py"


def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def bill() -> Any:
    return json.loads(ran().stdout)


def test_it_names_this_worker_and_every_package_beside_it_once(bill: Any) -> None:
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/llorch-worker@{__version__}"
    listed = [one["purl"] for one in bill["components"]]
    assert len(listed) == len(set(listed))
    names = {one.metadata["Name"].lower().replace("_", "-").replace(".", "-") for one in distributions()}
    python = {purl.removeprefix("pkg:pypi/").partition("@")[0] for purl in listed if purl.startswith("pkg:pypi/")}
    assert python == names - {"llorch-worker"}
    assert "msgspec" in python


def test_it_is_a_document_of_the_form_that_readers_expect(bill: Any) -> None:
    """The required members of CycloneDX 1.6, and a reference for each component."""
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    for one in bill["components"]:
        assert one["type"] == "library"
        assert one["name"]
        assert one["version"]
        assert one["bom-ref"] == one["purl"]


def test_the_same_packages_give_the_same_text_and_others_are_added() -> None:
    assert ran().stdout == ran().stdout
    added = json.loads(ran(str(ROOT / "docs"), "nvidia-cublas==13.0.2.14").stdout)
    assert "metadata" not in added
    assert added["components"][0]["purl"] == "pkg:pypi/nvidia-cublas@13.0.2.14"


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="the system has another packager")
def test_debian_packages_are_listed_on_request_only(bill: Any) -> None:
    def debian(found: Any) -> list[str]:
        return [one["purl"] for one in found["components"] if one["purl"].startswith("pkg:deb/")]

    assert debian(bill) == []
    assert any("/libc6@" in purl for purl in debian(json.loads(ran("--debian").stdout)))


@pytest.mark.parametrize(
    ("arguments", "says"), [(("nowhere",), "there is no folder nowhere"), (("docs", "cublas"), "cublas has no version")]
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], says: str) -> None:
    done = ran(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stdout == ""
