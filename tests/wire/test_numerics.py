"""The lines about a worker and a report that were not computed with the same."""

from typing import Any

import msgspec
import pytest

from worker.wire.load import Numerics

ON_A_CPU = Numerics(
    device="cpu",
    gpu_layers=0,
    split_mode="none",
    gpu_shares="",
    cache_type_k="bf16",
    cache_type_v="f16",
    flash_attn=True,
    swa_full=None,
    repacked=False,
    threads=None,
    cpu_features=("AVX2", "FMA", "AVX512"),
    llama_cpp="llama-cpp-python 0.3.36, ggml 0.25.3 (unknown)",
    llama_cpp_sha256="5d" * 32,
)

OTHERS: dict[str, tuple[Any, str]] = {
    "device": ("cuda NVIDIA L4", "cuda NVIDIA L4 here, cpu in the report"),
    "gpu_layers": (12, "12 here, 0 in the report"),
    "split_mode": ("row", "row here, none in the report"),
    "gpu_shares": ("25 %, 75 %", "25 %, 75 % here, of no effect in the report"),
    "cache_type_k": ("q4_0", "q4_0 here, bf16 in the report"),
    "cache_type_v": ("q4_0", "q4_0 here, f16 in the report"),
    "flash_attn": (False, "off here, on in the report"),
    "swa_full": (True, "on here, of no effect in the report"),
    "repacked": (True, "on here, off in the report"),
    "tiles": (True, "on here, off in the report"),
    "left_to_ggml": (("Q4_K",), "Q4_K here, none more in the report"),
    "threads": (4, "4 here, of no effect in the report"),
    "cpu_features": (("AVX2", "FMA"), "none more here, AVX512 in the report"),
    "llama_cpp": ("llama-cpp-python 0.3.37, ggml 0.26 (abc)", "llama-cpp-python 0.3.37, ggml 0.26 (abc) here, "),
    "llama_cpp_sha256": ("ab" * 32, f"{'ab' * 32} here, {'5d' * 32} in the report"),
}


def other(name: str) -> Numerics:
    return msgspec.structs.replace(ON_A_CPU, **{name: OTHERS[name][0]})


def test_there_is_an_example_of_every_fact() -> None:
    assert tuple(OTHERS) == Numerics.__struct_fields__


@pytest.mark.parametrize("name", OTHERS)
def test_each_fact_that_is_another_is_one_line_that_begins_with_its_name(name: str) -> None:
    (line,) = other(name).differences(ON_A_CPU)
    assert line.startswith(f"{name}: {OTHERS[name][1]}")


def test_the_same_is_no_difference() -> None:
    assert list(ON_A_CPU.differences(msgspec.structs.replace(ON_A_CPU))) == []


def test_people_are_shown_every_fact() -> None:
    assert [name for name, _ in ON_A_CPU.shown()] == list(OTHERS)
    assert dict(ON_A_CPU.shown())["cpu_features"] == "AVX2 FMA AVX512"
