"""The combinations of settings that are refused, and what would do instead. Pure."""

import ipaddress
import re
from collections.abc import Collection
from urllib.parse import urlsplit

from worker.config.engine_settings import CACHE_TYPES
from worker.config.settings import Settings
from worker.errors import UsageError
from worker.limits import MIN_CELLS, max_jobs


def check(settings: Settings, given: Collection[str] = ()) -> Settings:
    """The settings again, when they go together. `given` are the names of those that the user gave.

    Raises: UsageError with those that do not, and what would.
    """
    for rows in (_of_jobs(settings, given), _of_devices(settings), _exposed(settings)):
        for contradiction, is_so in rows.items():
            if is_so:
                raise UsageError(contradiction)
    return settings


def _of_jobs(settings: Settings, given: Collection[str]) -> dict[str, bool]:
    """Each text, and whether it is true of the settings."""
    parallel, ctx_size, deterministic = settings.parallel, settings.ctx_size, settings.deterministic
    ubatch_size, batch_size, type_v = settings.ubatch_size, settings.batch_size, settings.cache_type_v
    has_draft_model = settings.draft_model is not None
    return {
        f"--parallel {parallel} needs {MIN_CELLS} cells for each job, and --ctx-size is {ctx_size}: the smallest "
        f"--ctx-size for {parallel} jobs is {parallel * MIN_CELLS}, the largest --parallel for {ctx_size} cells "
        f"is {max_jobs(ctx_size)}": bool(parallel and ctx_size and parallel > max_jobs(ctx_size)),
        f"--ubatch-size {ubatch_size} is more than --batch-size {batch_size}: lower the first or raise the second": (
            "ubatch_size" in given and ubatch_size > batch_size
        ),
        f"--cache-type-v {type_v} is quantised and needs flash attention: "
        "use --flash-attn on or auto, or --cache-type-v f16": (
            type_v not in CACHE_TYPES[:3] and settings.flash_attn == "off"
        ),
        "--draft-model conflicts with --deterministic, which drafts nothing: remove one of the two": (
            has_draft_model and deterministic
        ),
        "--mtp conflicts with --draft-model, because one model drafts: remove one of the two": (
            settings.mtp and has_draft_model
        ),
        "--mtp conflicts with --deterministic, which drafts nothing: remove one of the two": (
            settings.mtp and deterministic
        ),
        "--batch-invariant off conflicts with --deterministic, which needs it: remove one of the two": (
            deterministic and settings.batch_invariant == "off"
        ),
        "--require-parity needs a report: add --parity-report FILE, or remove --require-parity": (
            settings.require_parity and settings.parity_report is None
        ),
    }


def _of_devices(settings: Settings) -> dict[str, bool]:
    device, layers = settings.device, settings.gpu_layers
    split, main_gpu, is_split = settings.split_mode, settings.main_gpu, settings.split_mode != "none"
    is_on_cpu, is_named = device == "cpu", re.search(r"[0-9]|cpu", device) is not None
    has_no_layers = settings.wants_no_layers and not is_on_cpu
    return {
        f"--gpu-layers {layers} conflicts with --device cpu: remove one of the two": (
            is_on_cpu and settings.wants_layers
        ),
        f"--split-mode {split} conflicts with --gpu-layers {layers}: remove one of the two": has_no_layers and is_split,
        f"--require-full-offload conflicts with --gpu-layers {layers}: remove one of the two": (
            has_no_layers and settings.require_full_offload
        ),
        f"--tensor-split {settings.tensor_split} has no effect with --split-mode none, which uses one GPU: "
        "add --split-mode layer or row, or remove --tensor-split": not is_split and settings.tensor_split is not None,
        f"--main-gpu {main_gpu} conflicts with --device {device}, because each chooses a device: remove one of the "
        "two": not is_split and main_gpu is not None and is_named,
        f"--split-mode {split} conflicts with --device cpu: remove one of the two": is_split and is_on_cpu,
        f"--main-gpu {main_gpu} conflicts with --split-mode {split}, which uses all GPUs: remove one of the two": (
            is_split and main_gpu is not None
        ),
    }


def _exposed(settings: Settings) -> dict[str, bool]:
    """The rows of what would show the prompts to other machines."""
    if settings.kv_events is None or settings.kv_events_public:
        return {}
    return {
        f"--kv-events {settings.kv_events} can be reached from other machines, and its events hold the tokens of "
        "all prompts: use tcp://127.0.0.1:PORT, or add --kv-events-public if anyone who can connect may read them": (
            not ipaddress.ip_address(urlsplit(settings.kv_events).hostname or "").is_loopback
        )
    }
