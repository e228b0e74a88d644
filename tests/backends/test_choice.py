"""`.llorch-test.toml`: what it may say, what it means to leave something out, and the words for a mistake."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.backends.choice import (
    BACKEND_VARIABLE,
    BACKENDS,
    FILE,
    MODEL_VARIABLE,
    ROOT,
    BackendTable,
    BuildTable,
    Choice,
    FeaturesTable,
    MistakenChoiceError,
    ModelTable,
    read_choice,
)

EXAMPLE = ROOT / ".llorch-test.example.toml"


def read(folder: Path, text: str, **environ: str) -> Choice:
    path = folder / FILE
    path.write_text(text)
    return read_choice(path, environ)


@pytest.mark.parametrize(
    ("text", "backend", "may", "must"),
    [
        ("", "", BACKENDS, ["cpu"]),
        ('[features]\nenabled = ["cpu", "vulkan"]', "", ["cpu", "vulkan"], ["cpu", "vulkan"]),
        ('[backend]\ntest_backend = "metal"', "", BACKENDS, ["metal"]),
        ('[backend]\ntest_backend = "metal"', "cuda", BACKENDS, ["cuda"]),
    ],
)
def test_what_is_chosen_must_run_what_is_left_out_may_not_and_the_variable_goes_before_the_file(
    tmp_path: Path, text: str, backend: str, may: Sequence[str], must: Sequence[str]
) -> None:
    choice = read(tmp_path, text, **{BACKEND_VARIABLE: backend})
    assert [name for name in BACKENDS if choice.may_run(name)] == [*may]
    assert [name for name in BACKENDS if choice.must_run(name)] == [*must]


def test_the_example_is_read_and_shows_every_key_with_its_default() -> None:
    shown = EXAMPLE.read_text()
    assert read_choice(EXAMPLE, {}).build == BuildTable()
    for table in (BackendTable, FeaturesTable, BuildTable, ModelTable):
        for key in table.__struct_fields__:
            assert re.search(rf"^(# )?{key} = ", shown, re.MULTILINE), key


def test_the_variables_model_goes_before_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one.gguf", "other.gguf"):
        (tmp_path / name).touch()
    text = f'[model]\npath = "{tmp_path}/one.gguf"'
    assert read(tmp_path, text, **{MODEL_VARIABLE: ""}).model_path == tmp_path / "one.gguf"
    monkeypatch.chdir(tmp_path)
    assert read(tmp_path, text, **{MODEL_VARIABLE: "other.gguf"}).model_path == tmp_path / "other.gguf"


@pytest.mark.parametrize(
    ("text", "variables", "words"),
    [
        ("[backend", {}, f"{FILE}: not a TOML file"),
        ("[build]\nbuild_rocm = true", {}, f"{FILE}: Object contains unknown field `build_rocm` - at `$.build`"),
        ('[backend]\ntest_backend = "rocm"', {}, "backends are cpu, cuda, metal, vulkan"),
        ('[features]\nenabled = ["cuda"]', {}, "test_backend is cpu, which features.enabled leaves out (cuda)"),
        ("[build]\nbuild_cpu = false", {}, "every build of llama.cpp computes on the CPU too"),
        (
            "[build]\nbuild_cuda = true\nbuild_vulkan = true",
            {},
            "[build] asks for cpu, cuda, vulkan; one build",
        ),
        (
            '[features]\nenabled = ["cpu", "cuda"]\n[build]',
            {},
            "cuda is to be tested, but build.build_cuda is",
        ),
        ('[model]\npath = "nowhere.gguf"', {}, f"{FILE}: model.path: "),
        ("", {MODEL_VARIABLE: "nowhere.gguf"}, f"{MODEL_VARIABLE}: "),
        ("", {BACKEND_VARIABLE: "cuda:0"}, f"{BACKEND_VARIABLE}: "),
        ("[build]\nbuild_cpu = true", {BACKEND_VARIABLE: "cuda"}, f"{BACKEND_VARIABLE}: cuda is to be tested"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_file_or_the_variable_and_what_is_wrong(
    tmp_path: Path, text: str, variables: dict[str, str], words: str
) -> None:
    with pytest.raises(MistakenChoiceError) as caught:
        read(tmp_path, text, **variables)
    assert words in str(caught.value)
    assert str(caught.value).startswith((f"{FILE}: ", *variables))
    assert "\n" not in str(caught.value)
