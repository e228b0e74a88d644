"""The check that a device computes the same as the CPU: the same tokens on both, logits against logits.

Where the model is the default one, the golden reference in float64 judges the device too; any other model is given
tokens by chance.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

from parity.bounds import Bounds
from parity.compare import Summary
from parity.evidence import LONG, Window
from parity.logits_file import LogitsFile
from parity.setups import as_served, compute, cpu, evaluated
from tools import CHECKOUT
from tools.cuda_check.report import Figure
from worker.host import cpu_quota, sha256_of
from worker.llama.devices import devices
from worker.models.facts.info import read_info
from worker.models.plan.devices import choose_device

GOLDEN = CHECKOUT / "tests" / "parity" / "golden" / "smollm2-135m-instruct-q4_1.logits.safetensors"
_SEED = 1


def compare(model: Path, asked: str, *, n_tokens: int) -> list[Figure]:
    """The device's rows against the CPU's, and against the reference: every number, some with a bound.

    Beside the model's memory it takes `n_tokens` rows of float32[n_vocab] twice on disk.
    Raises: ModelLoadFailed, InsufficientMemory; ValueError for logits that are not finite.
    """
    device, info = choose_device(asked, devices()), read_info(model)
    golden = LogitsFile.open(GOLDEN) if is_golden(model) else None
    numbers = evaluated(golden, n_tokens) if golden else []
    windows = [golden.windows[number] for number in numbers] if golden else _by_chance(info.vocab_size, n_tokens)
    with TemporaryDirectory(prefix="llorch-check-") as folder:
        on_cpu, on_it = (
            compute(model, as_served(), windows, folder=Path(folder) / name, n_threads=cpu_quota(), device=one)
            for name, one in (("cpu", cpu()), ("it", device))
        )
        beside = on_it.against(on_cpu.logits)
        beyond = on_it.against(golden, numbers) if golden else None
    return [
        msgspec.structs.replace(figure, model=model.name)
        for figure in (
            *_beside(beside, info.quant_kind, device.backend),
            *(_beyond(beyond, info.quant_kind, device.backend) if beyond else ()),
        )
    ]


def is_golden(model: Path) -> bool:
    """True if the golden reference is of this file."""
    return sha256_of(model) == LogitsFile.open(GOLDEN).provenance.made_from_sha256


def _by_chance(n_vocab: int, n_tokens: int) -> list[Window]:
    n_each = min(n_tokens, LONG)
    rows = np.random.default_rng(_SEED).integers(0, n_vocab, (n_tokens // n_each, n_each)).tolist()
    return [Window("long", tuple(row)) for row in rows]


def _beside(summary: Summary, kind: str, backend: str) -> Iterator[Figure]:
    """Against the CPU: one number is judged."""
    keys = (f"sources.step.backend.{name}.kl_mean" for name in (f"{backend}.{kind}", "other"))
    bound = Bounds.load().bound(*keys).value
    yield Figure(what="KL from the CPU, mean", value=summary.kl_mean.value, unit="nats", at_most=bound)
    yield Figure(what="KL from the CPU, largest", value=summary.kl_max, unit="nats")
    yield Figure(what="largest difference of a logit from the CPU's", value=summary.max_error)
    yield Figure(what="same most probable token as the CPU", value=summary.top1.value, unit="share")


def _beyond(summary: Summary, kind: str, backend: str) -> Iterator[Figure]:
    """The backend is compared with the reference: the CPU's bounds apply, and the backend's allowance on top."""
    kl, top1 = (
        Bounds.load().check(
            what,
            value,
            *(f"logits.own.{name}.{key}" for name in (kind, "other")),
            allowances=[f"logits.allowance.{backend}.{key}"],
        )
        for what, value, key in (
            ("KL from the reference, mean", summary.kl_mean.value, "kl_mean"),
            ("same most probable token as the reference", summary.top1.value, "top1"),
        )
    )
    yield Figure(what=kl.name, value=kl.value, unit="nats", at_most=kl.bound)
    yield Figure(what=top1.name, value=top1.value, unit="share", at_least=top1.bound)
