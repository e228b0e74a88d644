"""The meaning of the predecessor's spellings: the whole table."""

import pytest

from tests.config.given import parse
from worker.config.option import flag_name
from worker.config.spellings import DEVICE_NUMBERS, device_asked_for, ignored
from worker.errors import UsageError


def given(device: str | None, backend: str | None, numbers: dict[str, str]) -> dict[str, str]:
    flags = {"device": device, "backend": backend, **numbers}
    return {name: value for name, value in flags.items() if value is not None}


@pytest.mark.parametrize(
    ("device", "backend", "numbers", "expected"),
    [
        (None, None, {}, None),
        ("cpu", None, {}, "cpu"),
        ("2", None, {}, "2"),
        (None, None, {"gpu_device": "1"}, "1"),
        (None, None, {"cuda_device": "0"}, "0"),
        (None, None, {"metal_device": "0"}, "0"),
        (None, None, {"gpu": "007"}, "7"),
        (None, None, {"gpu": "1", "gpu_device": "1"}, "1"),
        (None, "cpu", {}, "cpu"),
        (None, "accelerate", {}, "cpu"),
        (None, "cuda", {}, "cuda"),
        (None, "metal", {}, "metal"),
        (None, "cuda", {"gpu_device": "1"}, "cuda:1"),
        (None, "cuda", {"cuda_device": "0"}, "cuda:0"),
        (None, "metal", {"metal_device": "0"}, "metal"),
        (None, "cpu", {"gpu": "3"}, "cpu"),
        (None, "accelerate", {"gpu": "3"}, "cpu"),
        ("1", "cuda", {}, "cuda:1"),
        ("0", "metal", {}, "metal"),
        ("0", "cpu", {}, "cpu"),
        ("5", "accelerate", {}, "cpu"),
        ("vulkan:1", "cuda", {"gpu": "0"}, "vulkan:1"),
        ("auto", "cpu", {}, "auto"),
        ("1", None, {"gpu": "0"}, "1"),
        ("1", "cuda", {"gpu": "0"}, "cuda:1"),
        ("tpu", "cuda", {}, "tpu"),
    ],
)
def test_the_device_the_flags_choose_together(
    device: str | None, backend: str | None, numbers: dict[str, str], expected: str | None
) -> None:
    assert device_asked_for(given(device, backend, numbers)) == expected


@pytest.mark.parametrize("flag", [flag_name(name) for name in DEVICE_NUMBERS])
@pytest.mark.parametrize("text", ["-1", "1000", "", "one", "1.0", "\u0661", " 1", "99999999999999999999"])
@pytest.mark.parametrize("backend", [[], ["--backend=cpu"], ["--backend=cuda"]])
def test_a_number_outside_0_to_999_is_refused_also_where_it_would_be_ignored(
    flag: str, text: str, backend: list[str]
) -> None:
    with pytest.raises(UsageError, match=rf"{flag}: .* allowed is 0\.\.999"):
        parse(["--model=m.gguf", *backend, f"{flag}={text}"], {})


@pytest.mark.parametrize("backend", ["rocm", "CUDA", ""])
def test_an_unknown_backend_is_refused_with_those_there_are(backend: str) -> None:
    with pytest.raises(UsageError, match=r"--backend: .*'cpu', 'cuda', 'metal', 'accelerate'"):
        parse(["--model=m.gguf", "--device=cpu", "--backend", backend], {})


@pytest.mark.parametrize(
    ("device", "backend", "numbers", "wording"),
    [
        (None, None, {"gpu": "0", "gpu_device": "1"}, "contradicts"),
        (None, "metal", {"metal_device": "1"}, "Metal has one"),
        ("1", "metal", {}, "Metal has one"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    device: str | None, backend: str | None, numbers: dict[str, str], wording: str
) -> None:
    with pytest.raises(UsageError, match=wording):
        device_asked_for(given(device, backend, numbers))


def test_ignored_flags_are_reported_by_name_only() -> None:
    params = {"hive_url": "http://user:secret@hive", "queen_url": None, "kv_cache_size_mb": "-5", "local_mode": True}
    assert ignored(params) == ("--hive-url", "--kv-cache-size-mb", "--local-mode")
