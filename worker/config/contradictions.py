"""The combinations of settings that are refused, and what would do instead.

Pure.
"""

import ipaddress
import re
from collections.abc import Collection, Iterator
from urllib.parse import urlsplit

from worker.config.gpu_flags import wants_layers, wants_no_layers
from worker.config.settings import CACHE_TYPES, Settings
from worker.errors import UsageError
from worker.limits import MIN_CELLS, max_jobs


def check(settings: Settings, given: Collection[str] = ()) -> Settings:
    """The settings again, when they go together. `given` are the names of those that the user gave.

    Raises: UsageError with those that do not, and what would.
    """
    for contradiction in _contradictions(settings, given):
        raise UsageError(contradiction)
    return settings


def _contradictions(settings: Settings, given: Collection[str]) -> Iterator[str]:
    parallel, ctx_size = settings.parallel, settings.ctx_size
    if parallel and ctx_size and parallel > max_jobs(ctx_size):
        yield (
            f"--parallel {parallel} needs {MIN_CELLS} cells for each job, and --ctx-size is {ctx_size}: the smallest "
            f"--ctx-size for {parallel} jobs is {parallel * MIN_CELLS}, the largest --parallel for {ctx_size} cells "
            f"is {max_jobs(ctx_size)}"
        )
    if "ubatch_size" in given and settings.ubatch_size > settings.batch_size:
        yield (
            f"--ubatch-size {settings.ubatch_size} is more than --batch-size {settings.batch_size}: lower the first or "
            "raise the second"
        )
    if settings.cache_type_v not in CACHE_TYPES[:3] and settings.flash_attn == "off":
        yield (
            f"--cache-type-v {settings.cache_type_v} is quantised and needs flash attention: "
            "use --flash-attn on or auto, or --cache-type-v f16"
        )
    if settings.draft_model is not None and settings.deterministic:
        yield "--draft-model conflicts with --deterministic, which drafts nothing: remove one of the two"
    if settings.mtp and settings.draft_model is not None:
        yield "--mtp conflicts with --draft-model, because one model drafts: remove one of the two"
    if settings.mtp and settings.deterministic:
        yield "--mtp conflicts with --deterministic, which drafts nothing: remove one of the two"
    if settings.deterministic and settings.batch_invariant == "off":
        yield "--batch-invariant off conflicts with --deterministic, which needs it: remove one of the two"
    if settings.require_parity and settings.parity_report is None:
        yield "--require-parity needs a report: add --parity-report FILE, or remove --require-parity"
    yield from _of_devices(settings)


def _of_devices(settings: Settings) -> Iterator[str]:
    device, layers = settings.device_or_auto, settings.gpu_layers
    split, main_gpu = settings.split_mode, settings.main_gpu
    if device == "cpu" and wants_layers(layers):
        yield f"--gpu-layers {layers} conflicts with --device cpu: remove one of the two"
    if device != "cpu" and wants_no_layers(layers):
        if split != "none":
            yield f"--split-mode {split} conflicts with --gpu-layers {layers}: remove one of the two"
        if settings.require_full_offload:
            yield f"--require-full-offload conflicts with --gpu-layers {layers}: remove one of the two"
    if split == "none" and settings.tensor_split is not None:
        yield (
            f"--tensor-split {settings.tensor_split} has no effect with --split-mode none, which uses one GPU: "
            "add --split-mode layer or row, or remove --tensor-split"
        )
    if split == "none" and main_gpu is not None and re.search(r"[0-9]|cpu", device):
        yield (
            f"--main-gpu {main_gpu} conflicts with --device {device}, because each chooses a device: remove one of the "
            "two"
        )
    if split != "none" and device == "cpu":
        yield f"--split-mode {split} conflicts with --device cpu: remove one of the two"
    if split != "none" and main_gpu is not None:
        yield (f"--main-gpu {main_gpu} conflicts with --split-mode {split}, which uses all GPUs: remove one of the two")
    yield from _exposed(settings)


def _exposed(settings: Settings) -> Iterator[str]:
    """Yield what would show the prompts to other machines."""
    if settings.kv_events is None or settings.kv_events_public:
        return
    if not ipaddress.ip_address(urlsplit(settings.kv_events).hostname or "").is_loopback:
        yield (
            f"--kv-events {settings.kv_events} can be reached from other machines, and its events hold the tokens of "
            "all prompts: use tcp://127.0.0.1:PORT, or add --kv-events-public if anyone who can connect may read them"
        )
