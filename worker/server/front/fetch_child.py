"""Fetches a missing model while the front already answers, in a child process, which a signal can end at any byte."""

import asyncio
import contextlib
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path

from worker.config.environment import environment_for_downloads
from worker.config.settings import Settings
from worker.errors import DownloadFailed
from worker.observe.log_lines import escape, get_logger

log = get_logger()

_LONGEST_LINE = 1024 * 1024
_END_TIMEOUT_S = 5.0


async def fetch_in_child(settings: Settings, reference: str) -> Path:
    """Run `models pull` for the model or draft model. Its progress goes to the terminal, or line by line to the log.

    When this is cancelled, the child is ended, and what it has downloaded stays for the next try.
    Raises: DownloadFailed.
    """
    is_served = reference == settings.model
    log.info("model_load_start", model_ref=settings.reported_model_ref if is_served else reference, phase="download")
    child = await asyncio.create_subprocess_exec(
        *_command(settings, reference),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=None if sys.stderr.isatty() else PIPE,
        limit=_LONGEST_LINE,
        env=environment_for_downloads(),
    )
    try:
        path, last_line = await asyncio.gather(_path_of(child), _relay(child))
        code = await child.wait()
    finally:
        await _end(child)
    if code != 0:
        raise DownloadFailed(last_line or f"{reference} could not be fetched; the lines above say why")
    return path


async def _end(child: Process) -> None:
    """End the child: ask it to, wait a little, then kill it."""
    for ask in (child.terminate, child.kill):
        with contextlib.suppress(ProcessLookupError):
            ask()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(child.wait(), _END_TIMEOUT_S)
            return


def _command(settings: Settings, reference: str) -> list[str]:
    command = [sys.executable, "-P", "-m", "worker", "models", "pull", reference]
    command += ["--models-dir", str(settings.models_dir)]
    if settings.catalog is not None:
        command += ["--catalog", str(settings.catalog)]
    return command


async def _path_of(child: Process) -> Path:
    assert child.stdout is not None
    return Path((await child.stdout.read()).decode().strip())


async def _relay(child: Process) -> str:
    """Log each line of the child's stderr as progress; the last one is the reason if it fails."""
    last_line = ""
    if child.stderr is not None:
        async for raw in child.stderr:
            last_line = escape(raw.decode(errors="replace").strip()).removeprefix("llorch-worker: error: ")
            log.info("model_load_progress", phase="download", detail=last_line)
    return last_line
