"""The contents of an image: user, entry point, labels, size, and what must not be in it."""

import json
import platform
from pathlib import Path

from tools.images.building import PIP, Built
from tools.images.container import new_volume, once, python
from tools.images.images import MB
from tools.images.store import Skipped

USER = "10001:10001"
NOT_INSIDE = ("cc", "gcc", "g++", "c++", "clang", "ld", "make", "cmake", "ninja", "nvcc", "glslc", "git", "curl", "pip")
"""Programs that build, fetch or install."""


def it_is_within_its_goal_of_bytes(built: Built) -> str:
    has_base, goal = built.image.goal_has_base, built.image.goal_bytes
    size = built.size_bytes if has_base else built.own_bytes
    assert size <= goal, f"{size / MB:.1f} MB, the goal is {goal / MB:.0f} MB"
    return f"{size / MB:.1f} MB of {goal / MB:.0f} MB, {'with' if has_base else 'without'} the base"


def its_configuration_is_that_of_a_service(built: Built) -> str:
    config = built.inspected["Config"]
    assert config["User"] == USER, config["User"]
    assert config["Entrypoint"] == ["llorch-worker"]
    assert not config.get("Cmd"), config.get("Cmd")
    assert config["StopSignal"] == "SIGTERM"
    assert list(config["ExposedPorts"]) == ["8080/tcp"]
    assert "LLORCH_MODELS_DIR=/models" in config["Env"]
    assert built.inspected["Healthcheck"]["Test"][:2] == ["CMD", "python3"]
    labels = {name.rpartition(".")[2] for name in config["Labels"] if name.startswith("org.opencontainers.image.")}
    assert labels >= {"title", "description", "licenses", "version", "revision"}, labels
    return f"user {USER}, exec form, {len(labels)} labels"


def nothing_of_this_machine_stays_in_it(built: Built) -> str:
    """Neither its proxies nor its package index; where that was mounted, at most an empty folder is left."""
    names = [entry.partition("=")[0] for entry in built.inspected["Config"]["Env"]]
    found = [name for name in names if "proxy" in name.lower() or name.startswith(("PIP_", "SSL_"))]
    assert found == []
    assert python(built, f"import pathlib; print(*pathlib.Path({str(PIP)!r}).glob('*'))") == ""
    return ", ".join(names)


def it_has_no_compiler_and_no_installer(built: Built) -> str:
    script = f"import shutil; print(*(name for name in {NOT_INSIDE!r} if shutil.which(name)))"
    assert python(built, script) == ""
    installers = "import importlib.util as u; print(u.find_spec('pip'), u.find_spec('setuptools'))"
    assert python(built, installers) == "None None"
    return f"none of {len(NOT_INSIDE)} programs"


def its_user_may_write_into_the_folder_of_models_alone(built: Built) -> str:
    """Everybody may write to /tmp and its like, which --read-only takes away."""
    with new_volume(built.store) as volume:
        found = python(built, _WRITABLE, options=("--read-only=false",), volume=volume).splitlines()
    assert found == ["/models"]
    return "/models"


def every_module_can_be_imported(built: Built) -> str:
    """Also those that only commands need: what was left out of the libraries is missed by none."""
    return f"{python(built, _IMPORT_ALL)} modules"


def its_bill_of_materials_names_every_package(built: Built) -> str:
    listed, there = json.loads(python(built, _BILL))
    assert set(there) <= set(listed), sorted(set(there) - set(listed))
    return f"{len(listed)} packages, of which {len(there)} are Python's"


def its_backends_are_there(built: Built) -> str:
    code, out, err = once(built, "devices", "--json")
    assert code == 0, err
    backends = {backend["name"]: backend for backend in json.loads(out)["backends"]}
    own, cpu = backends[built.image.wheel[0]], backends["cpu"]
    assert own["devices"] or built.image.missing in own["reason"], own
    assert cpu["variant"], f"the build is for one processor: {cpu}"
    assert (cpu["variant"] in AVX512_VARIANTS) == _has("avx512f"), cpu
    assert (cpu["variant"] == AMX_VARIANT) == ("AMX_INT8" in cpu["features"]) == _has("amx_int8"), cpu
    return f"{own['name']}: {own['reason'] or 'there'}; the CPU's code is {cpu['variant']}"


def its_code_for_amx_is_there_and_taken_by_a_processor_that_has_it(built: Built) -> str:
    """ggml takes the module with the highest score; 0 is none at all."""
    if platform.machine() != "x86_64":
        raise Skipped("this image is not for x86-64")
    score = int(python(built, _SCORE))
    assert (score > 0) == _has("amx_int8"), f"its score is {score}"
    return f"{AMX_VARIANT} has a score of {score}"


def _has(feature: str) -> bool:
    path = Path("/proc/cpuinfo")
    return path.is_file() and feature in path.read_text().split()


AMX_VARIANT = "sapphirerapids"
AVX512_VARIANTS = ("skylakex", "cannonlake", "cascadelake", "icelake", "cooperlake", "zen4", AMX_VARIANT)
"""The modules of ggml's CPU code that need it."""

_SCORE = f"""
import ctypes, importlib.util, pathlib
(folder,) = importlib.util.find_spec("llama_cpp").submodule_search_locations
folder = pathlib.Path(folder, "lib")
for name in (*folder.glob("libomp.so*[0-9]"), folder / "libggml-base.so"):
    ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
print(ctypes.CDLL(folder / "libggml-cpu-{AMX_VARIANT}.so").ggml_backend_score())
"""

_WRITABLE = """
import os, stat
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(folder, name) not in ("/proc", "/sys", "/dev")]
    for path in [folder, *(os.path.join(folder, name) for name in files)]:
        if not os.path.islink(path) and os.access(path, os.W_OK) and not os.stat(path).st_mode & stat.S_ISVTX:
            print(path)
"""

_BILL = """
import json
from importlib.metadata import distributions
with open("/opt/llorch-worker/bill-of-materials.cdx.json", encoding="utf-8") as file:
    bill = json.load(file)
listed = [one["purl"] for one in [bill["metadata"]["component"], *bill["components"]]]
there = {one.metadata["Name"].lower().replace("_", "-").replace(".", "-"): one.version for one in distributions()}
print(json.dumps([listed, [f"pkg:pypi/{name}@{version}" for name, version in there.items()]]))
"""

OF_EXTRAS = ("opentelemetry", "zmq")
"""The packages of the optional parts, without which the image is built."""

_IMPORT_ALL = f"""
import importlib, pkgutil, worker
names = [module.name for module in pkgutil.walk_packages(worker.__path__, "worker.")]
served = [name for name in names if not name.endswith("__main__")]
for name in served:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] not in {OF_EXTRAS}:
            raise
print(len(served))
"""
