"""The library is checked before it is used, loaded from its own folder only, and its words are heard.

Lines are as it writes them (its own wording, from its sources for backends that are not in this build).
"""

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import nullcontext
from pathlib import Path

import pytest
from llama_cpp import llama_cpp as capi

import worker
from worker.errors import ModelLoadFailed
from worker.llama.library import LIBRARY_DIR, LogLine, Watch, check_binding, check_runtimes, open_library
from worker.models.plan.buffers import Buffer
from worker.models.upstream.numbers import PINNED_VERSION


def test_the_pin_is_the_project_files_and_another_version_is_refused_with_the_remedy() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert f"llama-cpp-python=={PINNED_VERSION}" in project["project"]["dependencies"]
    assert open_library() is open_library()
    with pytest.raises(ModelLoadFailed, match=rf"0\.3\.35.*pip install llama-cpp-python=={PINNED_VERSION}"):
        check_binding("0.3.35")


@pytest.mark.parametrize(
    ("name", "n_bytes"),
    [
        ("llama_model_params", 80),
        ("llama_context_params", 160),
        ("llama_model_quantize_params", 64),
        ("llama_batch", 56),
    ],
)
def test_structs_have_the_size_that_they_have_in_the_headers_of_the_pinned_version(name: str, n_bytes: int) -> None:
    assert ctypes.sizeof(getattr(capi, name)) == n_bytes


@pytest.mark.parametrize("is_own", [False, True])
def test_a_library_with_a_cpp_runtime_of_its_own_is_refused_once_it_is_loaded(tmp_path: Path, *, is_own: bool) -> None:
    """Some compilers link it so by default, and CUDA's build of llama.cpp crashed while it read weights."""
    source, library = tmp_path / "words.cpp", tmp_path / "libwords.so"
    source.write_text('#include <stdexcept>\nvoid fail() { throw std::runtime_error("so"); }\n')
    flags = ("-shared", "-fPIC", "-static-libstdc++") if is_own else ("-shared", "-fPIC")
    subprocess.run([shutil.which("c++") or "c++", *flags, str(source), "-o", str(library)], check=True)
    check_runtimes(tmp_path)
    ctypes.CDLL(str(library))
    refused = pytest.raises(ModelLoadFailed, match=r"libwords\.so .*without -static-libstdc\+\+")
    with refused if is_own else nullcontext():
        check_runtimes(tmp_path)


def test_pieces_of_a_line_are_joined_and_a_new_line_ends_an_unfinished_one() -> None:
    lines: list[LogLine] = []
    library = open_library(lines.append)
    for level, text in ((3, b"half"), (5, b" and half\n"), (1, b"dots..."), (4, b"bad \xff\nthing\n")):
        library.take(level, text, None)
    library.on_log = None
    assert lines == [LogLine("warning", "half and half"), LogLine("debug", "dots..."), LogLine("error", "bad � thing")]


# ── what it says of its buffers ──────────────────────────────────────────────────────────────────


def watched(*texts: str, level: str = "info") -> Watch:
    watch = Watch()
    for text in texts:
        watch.take(LogLine(level, text))  # type: ignore[arg-type]  # a parameter of the test
    return watch


@pytest.mark.parametrize(
    ("text", "buffer"),
    [
        ("load_tensors:   CPU_Mapped model buffer size =    92.10 MiB", Buffer("CPU_Mapped", "model", 96573850)),
        ("llama_kv_cache:      CUDA0 KV buffer size =  1024.00 MiB", Buffer("CUDA0", "KV", 2**30)),
        ("llama_context:  CUDA_Host  output buffer size =     1.50 MiB", Buffer("CUDA_Host", "output", 1572864)),
        ("sched_reserve:       MTL0 compute buffer size =     0.25 MiB", Buffer("MTL0", "compute", 2**18)),
        ("llama_memory_recurrent:    Vulkan0 RS buffer size =     1.00 MiB", Buffer("Vulkan0", "RS", 2**20)),
        ("~llama_context:   CPU compute buffer size is  14.0117 MiB, matches expectation of  14.0117 MiB", None),
    ],
)
def test_a_buffer_line_is_measured_but_for_the_one_at_the_end_of_a_context(text: str, buffer: Buffer | None) -> None:
    assert watched(text).sizes.buffers == ((buffer,) if buffer else ())


def test_a_device_has_its_own_buffers_and_no_others() -> None:
    names = ("CUDA1", "CUDA1_Split", "CUDA10", "CUDA_Host", "CPU")
    sizes = watched(*(f"load_tensors: {name} model buffer size = 1.00 MiB" for name in names)).sizes
    assert sizes.on_device("CUDA1") == 2 * 2**20
    assert sizes.total_bytes == 5 * 2**20
    assert (sizes + sizes).of_kind("model") == 10 * 2**20
    assert sizes.of_kind("model", ["CUDA1", "CUDA10"]) == 3 * 2**20
    assert sizes.of_kind("KV", ["CUDA1"]) == sizes.of_kind("model", []) == 0


def test_offloaded_layers_are_counted() -> None:
    watch = watched("load_tensors: offloaded 12/33 layers to GPU")
    assert (watch.n_offloaded, watch.n_layers) == (12, 33)


@pytest.mark.parametrize(
    "text",
    [
        "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 123456",
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 123456",
    ],
)
def test_a_failed_allocation_says_its_size(text: str) -> None:
    watch = watched(text, level="error")
    assert watch.needed_bytes == 123456
    assert watch.last_error == text


def test_a_refused_file_s_reason_is_the_line_before_those_that_say_only_that_it_failed() -> None:
    reason = "gguf_init_from_reader: duplicate key 'general.name' for KV pair 15"
    watch = Watch()
    for text in (
        reason,
        "gguf_init_from_reader: failed to read key-value pairs",
        "llama_model_load: error loading model: llama_model_loader: failed to load model from m.gguf",
        "llama_model_load_from_file_impl: failed to load model",
    ):
        watch.take(LogLine("error", text))
    assert watch.last_error == reason


def test_flash_attention_that_is_left_out_is_noticed() -> None:
    for said, is_without in (
        ("resolve_fused_ops: Flash Attention not supported, set to disabled", True),
        ("llama_init_from_model: flash_attn is not compatible with Grok - forcing off", True),
        ("resolve_fused_ops: Flash Attention enabled", False),
    ):
        assert watched(said, level="warning").is_without_flash == is_without


def test_the_library_has_these_words_for_it() -> None:
    """No model here leaves it out on a CPU, so the words are looked for where they lie."""
    words = b"".join(path.read_bytes() for path in LIBRARY_DIR.glob("libllama.*"))
    known = (b"%s: %s not supported, set to disabled", b"Flash Attention", b"flash_attn is not compatible with")
    assert [word for word in known if word not in words] == []


# ── where it is loaded from ──────────────────────────────────────────────────────────────────────


ABORTS = """
import ctypes
from worker.llama.library import library_function, open_library
open_library()
abort = library_function("ggml_abort", None, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p)
abort(b"some.cpp", 7, b"GGML_ASSERT(x) failed")
"""


def test_a_failing_assertion_leaves_its_text_on_stderr() -> None:
    done = python("-c", ABORTS)
    assert done.returncode == -6
    assert "llama.cpp aborts: some.cpp:7: GGML_ASSERT(x) failed" in done.stderr


MODULES = sorted(path for path in LIBRARY_DIR.iterdir() if re.fullmatch(r"libggml-cpu-.+\.so", path.name))
"""The modules of a build that has its backends as modules; in others they are linked in."""

LISTS_WHAT_IS_MAPPED = """
from worker.llama.devices import devices
assert [device.name for device in devices()][-1:] == ["CPU"]
print(*sorted({line.split()[-1] for line in open("/proc/self/maps") if "ggml" in line or "llama" in line}), sep="\\n")
"""


def python(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_nothing_is_loaded_from_the_working_directory_or_where_the_environment_says(tmp_path: Path) -> None:
    """A planted module is a real one, so that it would be loaded if it were looked for."""
    real = next(iter(MODULES), LIBRARY_DIR / "libggml-cpu.so")
    for name in ("libggml-cpu.so", "libggml-cpu-planted.so", "libggml-blas.so"):
        shutil.copy(real, tmp_path / name)
    done = python("-c", LISTS_WHAT_IS_MAPPED, cwd=tmp_path, GGML_BACKEND_PATH=str(tmp_path / "libggml-cpu.so"))
    assert done.returncode == 0, done.stderr
    mapped = [Path(line) for line in done.stdout.split("\n") if line.startswith("/")]
    libraries = [path for path in mapped if ".so" in path.name and path.name.startswith(("libggml", "libllama"))]
    assert libraries
    assert {path.parent for path in libraries} == {LIBRARY_DIR}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_there_is_one_copy_of_each_library() -> None:
    """Two would have a list of backends each, and a module loaded into one is missing in the other."""
    done = python("-c", LISTS_WHAT_IS_MAPPED)
    names = [re.sub(r"\.so.*", "", Path(line).name) for line in done.stdout.split() if ".so" in line]
    ours = [name for name in names if name.startswith(("libggml", "libllama"))]
    assert sorted(ours) == sorted(set(ours))


@pytest.mark.skipif(not MODULES, reason="the backends are linked in")
def test_a_build_without_a_module_for_this_processor_is_refused(tmp_path: Path) -> None:
    """And what lies in the working directory is not taken in its place."""
    folder, planted = tmp_path / "lib", tmp_path / "cwd"
    shutil.copytree(LIBRARY_DIR, folder, ignore=shutil.ignore_patterns("libggml-cpu-*"))
    planted.mkdir()
    shutil.copy(MODULES[0], planted / "libggml-cpu.so")
    done = python(
        "-c", "from worker.llama.devices import devices; devices()", cwd=planted, LLAMA_CPP_LIB_PATH=str(folder)
    )
    assert "ModelLoadFailed" in done.stderr.splitlines()[-1]
    assert str(folder) in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", [["devices"], ["devices", "--json"]])
def test_a_library_that_cannot_be_loaded_is_one_line_for_the_user(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "libllama.so").write_bytes(b"no library")
    done = python("-m", "worker", *command, LLAMA_CPP_LIB_PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("llorch-worker: error: llama.cpp cannot be loaded")


# ── the binding in worker/_vendor, which a self-contained wheel has ──────────────────────────────────


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the worker's package, as an installation without worker/_vendor."""
    package = tmp_path / "worker"
    package.mkdir()
    for path in Path(worker.__file__).parent.iterdir():
        (package / path.name).symlink_to(path)
    return package


def installed() -> Path:
    found = importlib.util.find_spec("llama_cpp")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


@pytest.mark.parametrize("is_vendored", [True, False])
def test_the_binding_in_the_wheel_goes_before_the_installed_one(is_vendored: bool, package: Path) -> None:
    vendored = package / "_vendor" / "llama_cpp"
    if is_vendored:
        vendored.parent.mkdir()
        vendored.symlink_to(installed())
    loaded = python(
        "-c", "import worker.llama, llama_cpp; print(llama_cpp.__file__)", cwd=package.parent, PYTHONPATH=""
    ).stdout
    assert Path(loaded.strip()).parent == (vendored if is_vendored else installed())


REPORTS_A_REFUSAL = """
from worker.errors import ModelLoadFailed
try:
    import worker.llama
except ModelLoadFailed as error:
    print(error)
"""


def test_a_broken_binding_in_the_wheel_is_the_wheels_to_mend(package: Path) -> None:
    vendored = package / "_vendor" / "llama_cpp"
    vendored.mkdir(parents=True)
    (vendored / "__init__.py").write_text('raise RuntimeError("libstdc++.so.6: cannot open")\n')
    said = python("-c", REPORTS_A_REFUSAL, cwd=package.parent, PYTHONPATH="").stdout
    assert said.strip() == (
        "llama.cpp cannot be loaded (libstdc++.so.6: cannot open): install llorch-worker again, built for this machine"
    )
