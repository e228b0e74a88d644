"""`--kernels` and `--no-repack` on real workers: what /health says of them, and which answers are the same bits.

Where there are no kernels of ours, as on processors without AVX-512 VNNI, `make emulated-test` tries the rest.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.test_prefix_survival import logged
from tests.worker_process import WorkerProcess, eventually
from worker.llama.invariance import has_own_products

pytestmark = [pytest.mark.model, pytest.mark.process]

ASKED: dict[str, Any] = {
    "prompt": "The river rises in the hills, and in autumn the boats come down. " * 20,
    "max_tokens": 24,
    "temperature": 0.8,
    "seed": 5,
    "logprobs": 5,
}


def serve(model: Path, cache: Path, *flags: str) -> WorkerProcess:
    where = ("--model", str(model), "--port", "0", "--device", "cpu", "--ctx-size", "2048", "--parallel", "2")
    return WorkerProcess(*where, "--models-dir", str(cache), *flags)


def tokens(worker: WorkerProcess) -> list[tuple[str, Any]]:
    """The tokens of an answer with all their numbers."""
    return [(each["t"], each.get("logprobs")) for each in worker.run(**ASKED) if each["type"] == "token"]


def test_kernels_that_are_not_there_cannot_be_asked_for(default_model: Path, tmp_path: Path) -> None:
    if has_own_products():
        pytest.skip("this build of llama.cpp has them on this processor")
    with serve(default_model, tmp_path, "--kernels", "ours") as worker:
        error = worker.failure()
    assert error["message"].startswith(
        "--kernels ours: this processor, or this build of llama.cpp, has only llama.cpp's"
    )
    with serve(default_model, tmp_path) as worker:
        kernels = worker.ready().health()["kernels"]
    assert kernels == {
        "why": "this processor, or this build of llama.cpp, has only llama.cpp's kernels",
        "ours": {},
        "stock": {},
    }


def test_rows_in_another_order_change_no_bit(default_model: Path, tmp_path: Path) -> None:
    """ggml has no other order for the default model's type, and ours computes the same numbers from its own."""
    found = []
    for flags in ((), ("--no-repack",)):
        with serve(default_model, tmp_path, *(("--kernels", "ours") if has_own_products() else ()), *flags) as worker:
            found.append(tokens(worker.ready()))
    assert len(found[0]) > 10
    assert found[0] == found[1]


class TestWithOurs:
    @pytest.fixture(autouse=True)
    def _needs_them(self) -> None:
        if not has_own_products():
            pytest.skip("this build of llama.cpp, or this processor, has none")

    def test_a_choice_is_reported_and_outlives_engine_and_worker(self, default_model: Path, tmp_path: Path) -> None:
        found = []
        for why in ("timed at this start", "timed at an earlier start"):
            with serve(default_model, tmp_path) as worker:
                first = worker.ready().health()["kernels"]
                assert first["why"] == why
                assert {name: len(each) for name, each in (first["ours"] | first["stock"]).items()} == {
                    "Q8_0": 3,
                    "Q4_1": 0,
                }
                (line,) = [line for line in worker.log if line["event"] == "model_load_complete"]
                assert (line.get("kernels_ours") or {}) == first["ours"]
                assert (line.get("kernels_stock") or {}) == first["stock"]
                found.append(tokens(worker))
                worker.revive()
                assert worker.health()["kernels"] == first
                found.append(tokens(worker))
        assert found[1:] == found[:1] * 3

    def test_stock_keeps_no_promise_that_ours_keep(self, default_model: Path, tmp_path: Path) -> None:
        for kernels, other in (("ours", "stock"), ("stock", "ours")):
            with serve(default_model, tmp_path, "--kernels", kernels) as worker:
                health = worker.ready().health()
                assert health["kernels"] == {
                    "why": f"--kernels {kernels}",
                    kernels: {"Q8_0": [], "Q4_1": []},
                    other: {},
                }
                assert health["batch_invariant"]["kept"] == (kernels == "ours")

    def test_cells_of_one_choice_are_not_another_ones(self, default_model: Path, tmp_path: Path) -> None:
        folder = tmp_path / "cells"
        n_cached: list[int] = []
        for kernels, n_files in (("ours", 1), ("stock", 2), ("ours", 2)):
            flags = ("--kernels", kernels, "--prefix-cache-dir", str(folder))
            with serve(default_model, tmp_path, *flags) as worker:
                worker.ready()
                if len(n_cached) == 2:
                    logged(worker, "prefix_cache_restored")
                asked = {"prompt": ASKED["prompt"], "max_tokens": 1}
                usage = worker.post("/v1/completions", json=asked).json()["usage"]
                n_cached.append(usage["prompt_tokens_details"]["cached_tokens"])
                eventually(lambda n_files=n_files: len(list(folder.glob("*.kv"))) == n_files)  # type: ignore[misc]
                worker.terminate()
                assert worker.exit_code() == 0
        assert n_cached[:2] == [0, 0]
        assert n_cached[2] > 100
