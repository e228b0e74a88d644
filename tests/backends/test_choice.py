"""`.llorch-test.toml`: what it may say, what it means to leave something out, and the words for a mistake."""

import re
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


def test_without_a_file_everything_may_run_and_only_the_cpu_must(tmp_path: Path) -> None:
    choice = read_choice(tmp_path / FILE, {})
    assert choice == Choice()
    assert choice.model_path is None
    assert all(choice.may_run(backend) for backend in BACKENDS)
    assert [backend for backend in BACKENDS if choice.must_run(backend)] == ["cpu"]


def test_what_is_enabled_must_run_and_nothing_else_may(tmp_path: Path) -> None:
    choice = read(tmp_path, '[features]\nenabled = ["cpu", "vulkan"]')
    assert [backend for backend in BACKENDS if choice.may_run(backend)] == ["cpu", "vulkan"]
    assert [backend for backend in BACKENDS if choice.must_run(backend)] == ["cpu", "vulkan"]


def test_the_example_is_read_and_shows_every_key_with_its_default() -> None:
    shown = EXAMPLE.read_text()
    assert read_choice(EXAMPLE, {}).build == BuildTable()
    for table in (BackendTable, FeaturesTable, BuildTable, ModelTable):
        for key in table.__struct_fields__:
            assert re.search(rf"^(# )?{key} = ", shown, re.MULTILINE), key


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_variables_backend_goes_before_the_files_and_must_run(tmp_path: Path, backend: str) -> None:
    choice = read(tmp_path, '[backend]\ntest_backend = "metal"\ngpu_layers = 3', **{BACKEND_VARIABLE: backend})
    assert (choice.backend.test_backend, choice.backend.gpu_layers) == (backend, 3)
    assert [name for name in BACKENDS if choice.must_run(name)] == [backend]


@pytest.mark.parametrize(
    ("text", "backend", "words"),
    [
        ("", "cuda:0", "LLORCH_TEST_BACKEND: cuda:0 is none of cpu, cuda, metal, vulkan"),
        ('[features]\nenabled = ["cpu"]', "cuda", "LLORCH_TEST_BACKEND: .*features.enabled leaves out"),
        ("[build]\nbuild_cpu = true", "cuda", "LLORCH_TEST_BACKEND: cuda is to be tested"),
    ],
)
def test_a_variables_backend_that_cannot_be_is_refused_by_its_name(
    tmp_path: Path, text: str, backend: str, words: str
) -> None:
    with pytest.raises(MistakenChoiceError, match=words):
        read(tmp_path, text, **{BACKEND_VARIABLE: backend})


def test_the_variables_model_goes_before_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one.gguf", "other.gguf"):
        (tmp_path / name).touch()
    text = f'[model]\npath = "{tmp_path}/one.gguf"'
    assert read(tmp_path, text).model_path == tmp_path / "one.gguf"
    assert read(tmp_path, text, **{MODEL_VARIABLE: ""}).model_path == tmp_path / "one.gguf"
    monkeypatch.chdir(tmp_path)
    assert read(tmp_path, text, **{MODEL_VARIABLE: "other.gguf"}).model_path == tmp_path / "other.gguf"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[backend", "not a TOML file"),
        ("[backends]", "there is no table [backends]; there are backend, features, build, model"),
        ("[build]\nbuild_rocm = true", "there is no build.build_rocm; [build] has build_cpu, build_cuda"),
        ("backend = 'cpu'", "$.backend"),
        ('[backend]\ntest_backend = "rocm"', "backends are cpu, cuda, metal, vulkan"),
        ("[backend]\ngpu_layers = 0", "$.backend.gpu_layers"),
        ('[features]\nenabled = "cpu"', "$.features.enabled"),
        ('[features]\nenabled = ["cpu", "gpu"]', "$.features.enabled[1]"),
        ('[features]\nenabled = ["cuda"]', "test_backend is cpu, which features.enabled leaves out (cuda)"),
        ("[build]\nbuild_cuda = 'yes'", "$.build.build_cuda"),
        ("[build]\nbuild_cpu = false", "every build of llama.cpp computes on the CPU too"),
        ("[build]\nbuild_cuda = true\nbuild_vulkan = true", "[build] asks for cpu, cuda, vulkan; one build has one"),
        ('[features]\nenabled = ["cpu", "cuda"]\n[build]', "cuda is to be tested, but build.build_cuda is not true"),
        ('[backend]\ntest_backend = "metal"\n[build]', "metal is to be tested, but build.build_metal is not true"),
        ('[model]\npath = "nowhere.gguf"', "model.path: "),
    ],
)
def test_a_mistake_names_the_file_the_key_and_what_is_allowed(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(MistakenChoiceError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(f"{FILE}: ")
    assert words in message
    assert "\n" not in message


def test_a_variable_that_names_no_file_is_reported_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(MistakenChoiceError, match=f"^{MODEL_VARIABLE}: .*nowhere.gguf is not a file"):
        read(tmp_path, "", **{MODEL_VARIABLE: "nowhere.gguf"})
