"""The parts of the self-contained wheel that no build needs. tests/test_wheel.py tries the wheel itself."""

import re
from email.parser import HeaderParser
from pathlib import Path

import pytest

from tools import CHECKOUT
from tools.wheel import MODULES, NVIDIA_LIBRARIES, bill, bring_libraries, describe, links, packages_of_the_image
from worker.models.upstream.numbers import PINNED_VERSION

LINKS = ("libllama.so", "libllama.so.0", "libllama.so.0.5.0", "libggml-base.so", "libggml-base.so.0")
MODULES_OF_GGML = ("libggml-cpu-x64.so", "libggml-cuda.so")
UNUSED = ("libllama-common.so", "libllama-common.so.0", "libggml-cpu-cannonlake.so", "libx.so.5.LICENSE", "llama.pc")


def test_a_library_is_brought_once_by_the_name_that_others_ask_for(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in (*LINKS, *MODULES_OF_GGML, *UNUSED, "libomp.so.5"):
        (source / name).write_text(name)
    brought = bring_libraries(source, tmp_path / "target")
    assert {path.name for path in brought} == {"libllama.so", "libggml-base.so.0", "libomp.so.5", *MODULES_OF_GGML}
    assert {path.name for path in (tmp_path / "target").iterdir()} == {path.name for path in brought}


def test_cuda_s_libraries_are_those_of_the_image_and_the_bill_names_the_binding_and_every_patch() -> None:
    packages = packages_of_the_image()
    assert packages
    assert all(re.fullmatch(r"nvidia-[a-z-]+==13\.[\d.]+", package) for package in packages)
    assert NVIDIA_LIBRARIES.endswith("/nvidia/cu13/lib")
    text = str(bill(PINNED_VERSION))
    assert f"pkg:pypi/llama-cpp-python@{PINNED_VERSION}" in text
    assert all(path.name in text for path in (CHECKOUT / "patches").glob("*.patch"))


WORKFLOW = {"GITHUB_SERVER_URL": "https://git.example.com", "GITHUB_REPOSITORY": "owner/name", "GITHUB_SHA": "1a2b"}


def test_the_links_of_a_workflows_wheel_lead_to_files_of_its_commit() -> None:
    """hatchling and the tool `wheel` read nothing of the environment, so METADATA has exactly these."""
    assert not any(links({name: WORKFLOW[name] for name in WORKFLOW if name != missing}) for missing in WORKFLOW)
    found = links(WORKFLOW)
    assert found.pop("Homepage") == "https://git.example.com/owner/name"
    assert found.pop("Issues") == "https://git.example.com/owner/name/issues"
    paths = {label: url.split("/1a2b/")[1] for label, url in found.items()}
    assert paths == {"Documentation": "docs", "Changelog": "CHANGELOG.md"}
    assert all((CHECKOUT / path).exists() for path in paths.values())


def test_the_wheels_metadata_has_those_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in WORKFLOW.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "METADATA").write_text("Name: llorch-worker\nVersion: 0.1.0\nLicense-Expression: MIT\n\n# Text\n")
    (tmp_path / "WHEEL").write_text("Root-Is-Purelib: true\nTag: py3-none-any\n")
    describe(tmp_path, PINNED_VERSION, "", [])
    metadata = HeaderParser().parsestr((tmp_path / "METADATA").read_text())
    assert metadata.get_all("Project-URL", []) == [f"{label}, {url}" for label, url in links(WORKFLOW).items()]
    assert metadata.get_payload() == "# Text\n"


@pytest.mark.parametrize("module", MODULES)
def test_the_modules_it_brings_import_no_package_but_the_one_it_requires(module: str) -> None:
    import llama_cpp  # noqa: PLC0415 - only its folder is wanted, of a library that takes long to load

    text = Path(llama_cpp.__file__).with_name(module).read_text()
    imported = set(re.findall(r"^(?:from|import) ([\w.]+)", text, re.MULTILINE))
    standard = {"__future__", "ctypes", "functools", "os", "pathlib", "sys", "typing", "warnings"}
    assert imported - standard <= {"typing_extensions", "llama_cpp._ctypes_extensions"}
