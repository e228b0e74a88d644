"""Wishes about several GPUs that go together, and those that do not: each named in one line with the way out."""

from dataclasses import replace

import pytest

from worker.config.combinations import check
from worker.config.settings import Settings
from worker.errors import UsageError


@pytest.mark.parametrize(
    "changes",
    [
        {"split_mode": "layer"},
        {"split_mode": "row", "device": "cuda"},
        {"split_mode": "layer", "device": "cuda:1"},
        {"split_mode": "layer", "tensor_split": "3,1"},
        {"split_mode": "layer", "tensor_split": "0,0.5"},
        {"split_mode": "layer", "tensor_split": "0,0"},
        {"main_gpu": 0},
        {"main_gpu": 3, "device": "vulkan"},
        {"gpu_layers": "0", "device": "cpu"},
        {"gpu_layers": "auto", "device": "cpu"},
        {"gpu_layers": "all", "device": "cuda"},
        {"gpu_layers": "10"},
        {"gpu_layers": "0", "require_full_offload": True, "device": "cpu"},
    ],
)
def test_good_wishes_pass(changes: dict[str, object]) -> None:
    wish = replace(Settings(), **changes)  # type: ignore[arg-type]  # mixed on purpose
    assert check(wish) is wish


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tensor_split": "3,1"}, "--tensor-split 3,1 has no effect with --split-mode none"),
        ({"main_gpu": 1, "split_mode": "row"}, "--main-gpu 1 conflicts with --split-mode row"),
        ({"split_mode": "layer", "device": "cpu"}, "--split-mode layer conflicts with --device cpu"),
        ({"main_gpu": 0, "device": "cuda:1"}, "--main-gpu 0 conflicts with --device cuda:1"),
        ({"main_gpu": 0, "device": "1"}, "--main-gpu 0 conflicts with --device 1"),
        ({"main_gpu": 0, "device": "cpu"}, "--main-gpu 0 conflicts with --device cpu"),
        ({"gpu_layers": "all", "device": "cpu"}, "--gpu-layers all conflicts with --device cpu"),
        ({"gpu_layers": "10", "device": "cpu"}, "--gpu-layers 10 conflicts with --device cpu"),
        ({"require_full_offload": True, "gpu_layers": "0"}, "--require-full-offload conflicts with --gpu-layers 0"),
        ({"split_mode": "row", "gpu_layers": "00"}, "--split-mode row conflicts with --gpu-layers 00"),
        ({"draft_model": "d.gguf", "deterministic": True}, "--draft-model conflicts with --deterministic"),
        ({"draft_model": "d.gguf", "mtp": True}, "--mtp conflicts with --draft-model"),
        ({"deterministic": True, "mtp": True}, "--mtp conflicts with --deterministic"),
        ({"batch_invariant": "off", "deterministic": True}, "--batch-invariant off conflicts with --deterministic"),
    ],
)
def test_wishes_that_cannot_all_hold_are_refused_with_a_way_out(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        check(replace(Settings(), **changes))  # type: ignore[arg-type]  # mixed on purpose
    message = str(caught.value)
    assert message.startswith(said)
    assert "\n" not in message
    assert message.endswith("remove one of the two") or "or remove --tensor-split" in message
    for kept, value in changes.items():  # what the message advises is enough
        if kept != "tensor_split":
            left = {kept: value}
            check(replace(Settings(), **left))  # type: ignore[arg-type]  # mixed on purpose


@pytest.mark.parametrize(("text", "numbers"), [(None, ()), ("1", (1.0,)), ("3,1", (3.0, 1.0)), ("0.25,2", (0.25, 2.0))])
def test_shares_are_numbers(text: str | None, numbers: tuple[float, ...]) -> None:
    assert Settings(tensor_split=text).shares == numbers
