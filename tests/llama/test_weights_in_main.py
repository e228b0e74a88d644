"""Weights that the CPU lays out anew when they are loaded: planned tensor by tensor, there once, reported as they are.

The models are a billion weights wide and some layers deep, of zeros: what is held does not depend on the values.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parity.setups import cpu
from tests.llama.shapes import MIXTURE, TINY_LLAMA, Shape, write_shape
from tests.llama.tiny import write_tiny
from tests.models.loading.test_load import configuration
from worker.config.engine_settings import Configure
from worker.llama.devices import devices
from worker.llama.model import Model
from worker.llama.repack import TILES, layout_of, may_repack
from worker.models.facts.gguf import Tensor
from worker.models.facts.info import read_info
from worker.models.loading.load import load_runner
from worker.models.loading.places import DryRun
from worker.models.plan.placement import Placement, place
from worker.models.upstream.ggml_types import TENSOR_TYPES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is held is read from /proc")

TOLERANCE = 0.1
MIB = 2**20
WIDE = replace(TINY_LLAMA, n_layers=5)
TIED = replace(WIDE, name="tied", has_output=False, n_layers=2)
EXPERTS = replace(MIXTURE, name="experts", n_layers=1, n_expert=16, n_vocab=32_000)

TypeOf = Callable[[str], int]
TYPE_IDS = {kind.name: type_id for type_id, kind in TENSOR_TYPES.items()}


def all_of(type_name: str) -> TypeOf:
    return lambda _: TYPE_IDS[type_name]


def mostly_q4_k(name: str) -> int:
    """The types that a file of the name Q4_K_M has."""
    is_finer = name == "output" or name.endswith(("attn_v", "ffn_down"))
    return TYPE_IDS["Q6_K" if is_finer else "Q4_K"]


def hardly_q4_0(name: str) -> int:
    return TYPE_IDS["Q4_0" if name.endswith("attn_q") else "Q8_0"]


MODELS: dict[str, tuple[Shape, TypeOf]] = {
    **{name: (WIDE, all_of(name)) for name in ("Q4_K", "Q4_0", "IQ4_NL", "Q8_0", "Q4_1")},
    "Q4_K_M": (WIDE, mostly_q4_k),
    "Q8_0 with some Q4_0": (WIDE, hardly_q4_0),
    "Q4_0 without an output matrix": (TIED, all_of("Q4_0")),
    "experts of Q4_0": (EXPERTS, all_of("Q4_0")),
}


def config_of(path: Path) -> Configure:
    return configuration(path, ctx_size=1024, parallel=2)


def placement_of(path: Path) -> Placement:
    info = read_info(path)
    dry_run = DryRun(1 << 45, repacks=may_repack([info]))
    return place(config_of(path), info, devices(), 1 << 45, dry_run)


@pytest.mark.long
@pytest.mark.parametrize("kind", MODELS)
def test_weights_are_planned_as_the_library_has_them(tmp_path: Path, kind: str) -> None:
    """The plan holds to the hundredth of a MiB that it prints of each of its buffers."""
    shape, type_of = MODELS[kind]
    path = write_shape(tmp_path / "m.gguf", replace(shape, n_layers=1), type_of)
    planned = placement_of(path).weights_in_main
    asked: dict[str, Any] = {"is_mapped": planned.is_mapped, "may_repack": planned.repacked > 0}
    with Model.load(path, device=cpu(), n_gpu_layers=0, on_progress=lambda _: None, **asked) as model:
        found = {buffer.name: buffer.size_bytes for buffer in model.sizes.buffers}
    ordinary = found.pop("CPU", 0) + found.pop("CPU_Mapped", 0)
    assert sum(found.values()) == pytest.approx(planned.repacked, abs=MIB // 50)
    assert ordinary == pytest.approx(planned.total_bytes - planned.repacked, abs=MIB // 50)


HOLD = """
import json, sys
from pathlib import Path
from tests.llama.test_weights_in_main import config_of
from worker.llama.library import open_library
from worker.models.loading.load import load_runner
from worker.models.loading.places import DryRun

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return [int(found[name].split()[0]) * 1024 for name in ("VmRSS", "RssAnon")]

open_library()
rss, anonymous = resident()
loaded = load_runner(config_of(Path(sys.argv[1])), lambda _: None)
rss_after, anonymous_after = resident()
facts = loaded.facts
print(json.dumps([facts.memory_bytes, rss_after - rss, anonymous_after - anonymous, len(facts.offload.off_plan)]))
"""


@pytest.mark.process
@pytest.mark.parametrize("kind", ["Q4_K", "Q4_0", "IQ4_NL", "Q8_0", "Q4_K_M", "Q8_0 with some Q4_0"])
def test_what_is_planned_and_reported_is_what_the_process_holds(tmp_path: Path, kind: str) -> None:
    shape, type_of = MODELS[kind]
    path = write_shape(tmp_path / "m.gguf", shape, type_of)
    plan = placement_of(path)
    command = [sys.executable, "-c", HOLD, str(path)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=240)
    reported, resident, anonymous, n_off_plan = json.loads(done.stdout)
    assert reported == pytest.approx(plan.host.total_bytes, rel=TOLERANCE)
    assert resident == pytest.approx(reported, rel=TOLERANCE)
    assert n_off_plan == 0
    if not plan.weights_in_main.is_mapped:
        assert resident - anonymous < TOLERANCE * resident, "a file that is not mapped leaves no pages"


# ── what is laid out anew ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("type_name", TYPE_IDS)
def test_the_library_is_asked_about_every_type(tmp_path: Path, type_name: str) -> None:
    """Its own account of a load is the proof; most types are never laid out anew."""
    kind = TENSOR_TYPES[TYPE_IDS[type_name]]
    n_rows = 64
    matrix = Tensor("blk.0.attn_q.weight", (2048, n_rows), type_name, kind.n_bytes(2048 * n_rows))
    if (laid_out := layout_of(matrix)) is not None:
        # Tiles have sums beside some types' weights, with which signed bytes are multiplied as unsigned ones.
        assert 1.0 <= laid_out.n_bytes / matrix.n_bytes <= (1.12 if laid_out.buffers == TILES else 1.0)
    assert layout_of(replace(matrix, dims=(2048, n_rows - 1))) is None, "kernels take whole groups of rows"
    stacked = layout_of(replace(matrix, dims=(2048, n_rows, 2)))
    assert stacked is None or stacked.buffers == TILES, "only experts are multiplied as a stack"


@pytest.mark.parametrize("dims", [(0, 8), (32, 0), (32, 8, 0), (32, 8, 2, 2), (32, 8, 2, 0), (32,), (32, 1)])
@pytest.mark.parametrize("name", ["blk.0.attn_q.weight", "blk.0.ffn_up_exps.weight"])
def test_shapes_that_ggml_has_no_product_for_are_asked_without_harm(name: str, dims: tuple[int, ...]) -> None:
    """It would end the process on some of them."""
    assert layout_of(Tensor(name, dims, "Q4_0", 0)) is None


def test_what_is_not_repacked_stays_mapped_in_the_file(tmp_path: Path) -> None:
    path = write_shape(tmp_path / "m.gguf", WIDE, all_of("Q3_K"))
    planned = placement_of(path).weights_in_main
    assert (planned.is_mapped, planned.repacked) == (True, 0)
    assert planned.total_bytes == read_info(path).weights_bytes


def test_a_file_whose_tensors_ggml_cannot_map_is_read(tmp_path: Path) -> None:
    """It aborts on a mapping whose first weight is not aligned to 32 bytes; the format allows 8."""
    starts = set()
    for n_letters in range(4):
        more: dict[str, Any] = {"x" * (8 * n_letters): 1}
        path = write_tiny(tmp_path / "m.gguf", alignment=8, **more)
        starts.add((path.stat().st_size - read_info(path).weights_bytes) % 32)
        with closing(load_runner(config_of(path), lambda _: None).runner) as runner:
            assert [buffer.name for buffer in runner.model.sizes.buffers] == ["CPU"]
    assert len(starts) == 4, "weights begin at every multiple of 8"


@pytest.mark.parametrize("flag", ["deterministic", "no_repack"])
def test_with_deterministic_or_no_repack_the_weights_stay_as_the_file_has_them(tmp_path: Path, flag: str) -> None:
    """IQ4_NL has no kernels of ours, whose panels `--deterministic` allows."""
    path = write_shape(tmp_path / "m.gguf", replace(WIDE, n_layers=1, n_vocab=1000), all_of("IQ4_NL"))
    config = configuration(path, ctx_size=1024, parallel=2, **{flag: True})
    assert may_repack([read_info(path)])
    assert layout_of(Tensor("blk.0.attn_q.weight", (2048, 2048), "IQ4_NL", 1))
    with closing(load_runner(config, lambda _: None).runner) as runner:
        buffers = runner.model.sizes.buffers
    assert [buffer.name for buffer in buffers] == ["CPU_Mapped"]
    assert buffers[0].size_bytes == pytest.approx(read_info(path).weights_bytes, abs=MIB // 50)
