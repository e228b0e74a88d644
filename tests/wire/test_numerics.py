"""The lines about a worker and a report that were not computed with the same."""

from pathlib import Path

import msgspec
import pytest

from tests.record.rows import read
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

OTHERS = {row["fact"]: row for row in read(Path(__file__).with_name("numerics.jsonl"))}
"""Each fact has another value here, and the beginning of the line about it."""


def other(name: str) -> Numerics:
    here = OTHERS[name]["here"]
    return msgspec.structs.replace(ON_A_CPU, **{name: tuple(here) if isinstance(here, list) else here})


@pytest.mark.parametrize("name", OTHERS)
def test_each_fact_that_is_another_is_one_line_that_begins_with_its_name(name: str) -> None:
    (line,) = other(name).differences(ON_A_CPU)
    assert list(other(name).differences(other(name))) == []
    assert line.startswith(f"{name}: {OTHERS[name]['line']}")


def test_people_are_shown_every_fact() -> None:
    assert [name for name, _ in ON_A_CPU.shown()] == [*OTHERS] == [*Numerics.__struct_fields__]
    assert dict(ON_A_CPU.shown())["cpu_features"] == "AVX2 FMA AVX512"
