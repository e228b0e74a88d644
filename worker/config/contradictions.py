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
        _conflict("--draft-model", "--deterministic", "which drafts nothing"): has_draft_model and deterministic,
        _conflict("--mtp", "--draft-model", "because one model drafts"): settings.mtp and has_draft_model,
        _conflict("--mtp", "--deterministic", "which drafts nothing"): settings.mtp and deterministic,
        _conflict("--batch-invariant off", "--deterministic", "which needs it"): (
            deterministic and settings.batch_invariant == "off"
        ),
        "--require-parity needs a report: add --parity-report FILE, or remove --require-parity": (
            settings.require_parity and settings.parity_report is None
        ),
    }


def _of_devices(settings: Settings) -> dict[str, bool]:
    on_device, with_layers = f"--device {settings.device}", f"--gpu-layers {settings.gpu_layers}"
    main_gpu, split_mode = f"--main-gpu {settings.main_gpu}", f"--split-mode {settings.split_mode}"
    is_on_cpu, is_split = settings.device == "cpu", settings.split_mode != "none"
    names_one = re.search(r"[0-9]|cpu", settings.device) is not None
    has_main, has_no_layers = settings.main_gpu is not None, settings.wants_no_layers and not is_on_cpu
    return {
        _conflict(with_layers, on_device): is_on_cpu and settings.wants_layers,
        _conflict(split_mode, with_layers): has_no_layers and is_split,
        _conflict("--require-full-offload", with_layers): has_no_layers and settings.require_full_offload,
        f"--tensor-split {settings.tensor_split} has no effect with --split-mode none, which uses one GPU: "
        "add --split-mode layer or row, or remove --tensor-split": not is_split and settings.tensor_split is not None,
        _conflict(main_gpu, on_device, "because each chooses a device"): not is_split and has_main and names_one,
        _conflict(split_mode, on_device): is_split and is_on_cpu,
        _conflict(main_gpu, split_mode, "which uses all GPUs"): is_split and has_main,
    }


def _conflict(flag: str, other: str, why: str = "") -> str:
    return f"{flag} conflicts with {other}{', ' * bool(why)}{why}: remove one of the two"


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
