"""A context can be made with some sizes and types, and says why it cannot with others."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.llama.conftest import MakeContext, slice_of
from tests.llama.tiny import write_tiny
from tests.on_cpu import loaded_on_cpu
from worker.errors import ModelLoadFailed
from worker.llama.model import Model
from worker.wire.jobs import TokenId

pytestmark = pytest.mark.model


@pytest.mark.parametrize(
    "changes",
    [
        {"n_batch": 1, "n_seq_max": 8},
        {"n_batch": 4, "n_ubatch": 1, "n_seq_max": 8},
        {"n_ubatch": 3, "n_seq_max": 8},
        {"n_ctx": 1, "n_batch": 10**6, "n_ubatch": 10**6},
    ],
)
def test_odd_sizes_work(make_context: MakeContext, tiny: Model, changes: dict[str, int]) -> None:
    """Among them a batch smaller than the slots, which would abort."""
    context = make_context(tiny, **changes)
    slices = [slice_of(slot, 0, [TokenId(5)]) for slot in range(context.n_slots)]
    assert len(context.decode(slices)) == context.n_slots


def test_the_library_says_why_a_context_cannot_be(make_context: MakeContext) -> None:
    with pytest.raises(ModelLoadFailed, match="quantized V cache requires flash_attn"):
        make_context(type_v="q8_0", flash_attn="off")


def test_a_model_that_does_not_generate_is_refused(tmp_path: Path, make_context: MakeContext) -> None:
    changes: dict[str, Any] = {"attention.causal": False}
    path = write_tiny(tmp_path / "tiny.gguf", **changes)
    model = loaded_on_cpu(path)
    with model, pytest.raises(ModelLoadFailed, match="does not generate text"):
        make_context(model)


def test_memory_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The process may have 2 GiB. Otherwise the system might promise any amount, and keep no promise."""
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from worker.errors import InsufficientMemory\n"
        "from worker.llama.context import Context\n"
        "from worker.llama.devices import devices\n"
        "from worker.models.plan.devices import choose_device\n"
        "from worker.llama.model import Model\n"
        "cpu = choose_device('cpu', devices())\n"
        "model = Model.load(Path(sys.argv[1]), device=cpu, n_gpu_layers=0, on_progress=lambda _: None)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))\n"
        "try:\n"
        "    Context(model, n_ctx=2**25, n_batch=8, n_ubatch=8, n_seq_max=1, n_threads=1, n_threads_batch=1)\n"
        "except InsufficientMemory as error:\n"
        "    print(error.needed_bytes)\n"
    )
    path = write_tiny(tmp_path / "tiny.gguf")
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, timeout=60, check=True)
    assert int(done.stdout) == 2**25 * 128


@pytest.mark.usefixtures("default_model")
def test_the_buffers_of_a_context_are_measured(make_context: MakeContext) -> None:
    """30 layers × 3 KV heads × 64 numbers, K and V, two bytes each: 23,040 bytes a cell."""
    sizes = make_context(n_ctx=1024).sizes
    assert sizes.of_kind("KV") == pytest.approx(1024 * 23_040, rel=0.01)
    assert sizes.of_kind("compute") > 0
    assert sizes.of_kind("output") > 0
    assert sizes.on_device("CPU") == sizes.total_bytes
