"""The progress of the load: a bar at a terminal, `model_load_progress` lines elsewhere; and the lines about its end."""

import sys

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from worker.config.settings import Settings
from worker.observe.log_lines import get_logger
from worker.observe.log_setup import is_pretty
from worker.wire.load import Loaded

log = get_logger()

LOG_EVERY_PERCENT = 25

AMX_REMEDY = (
    "this processor has AMX and llama.cpp was built without it, so prompts take several times as long: "
    "install clang-19 and libomp-19-dev, then build it again (scripts/build_llama.sh)"
)


class LoadProgress:
    """Shows whole percents. It starts with the first call of `show` and ends with 100."""

    def __init__(self, log_format: str | None) -> None:
        self._next_percent = 0
        self._is_over = False
        self._bar: Progress | None = None
        if is_pretty(log_format) and sys.stderr.isatty():
            columns = (TextColumn("loading the model"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
            self._bar = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("load", total=100)

    def show(self, percent: int) -> None:
        """Show a percentage. Nothing is shown after 100: the engine is then alive, and still busy."""
        if self._is_over:
            return
        if self._bar is not None:
            self._bar.start()
            self._bar.update(self._task, completed=percent)
        elif percent >= self._next_percent:
            self._next_percent = percent - percent % LOG_EVERY_PERCENT + LOG_EVERY_PERCENT
            log.info("model_load_progress", percent=percent)
        if percent >= 100:
            self.close()

    def close(self) -> None:
        """Take the bar away and give the terminal its cursor back, however the load ended. Idempotent."""
        self._is_over = True
        if self._bar is not None:
            self._bar.stop()


def report_loaded(facts: Loaded, settings: Settings) -> None:
    """Log the loaded model and its device, and a line for each device on which it takes other memory than planned."""
    head = facts.drafts.next_token_head
    log.info(
        "model_load_complete",
        model=facts.name,
        model_ref=settings.reported_model_ref,
        device=facts.device_name,
        gpu_layers=facts.offload.gpu_layers,
        layers_total=facts.offload.layers_total,
        memory_bytes=facts.memory_bytes,
        tile_bytes=facts.amx.tile_bytes,
        batch_invariant=facts.batch_invariance.kept,
        batch_invariant_because=facts.batch_invariance.why,
        kernels_ours=dict(facts.kernels.ours) or None,
        kernels_stock=dict(facts.kernels.stock) or None,
        kernels_because=facts.kernels.why,
        mtp=None if head is None else "on" if head.off_because is None else f"off: {head.off_because}",
        chat_format=facts.model.chat_format.title if facts.model.chat_template else None,
        max_prompt_tokens=min(facts.context_length - 1, settings.max_tokens_in or facts.context_length),
    )
    if facts.backend == "cpu" and facts.amx.processor and not facts.amx.build:
        log.warning("amx_left_out", remedy=AMX_REMEDY)
    if facts.prefix_cache_off is not None and settings.prefix_cache_bytes:
        log.warning("prefix_cache_off", reason=facts.prefix_cache_off)
    if facts.drafts.off_because is not None and settings.prompt_lookup != "off" and not settings.deterministic:
        log.warning("drafts_off", reason=facts.drafts.off_because)
    for difference in facts.offload.off_plan:
        log.warning("memory_off_plan", **msgspec.structs.asdict(difference))
