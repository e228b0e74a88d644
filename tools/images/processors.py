"""The image on processors of 2008 and 2013, which qemu emulates instruction by instruction: what is newer is an illegal
one.

qemu stands in for the image's Python, so that the engine, which Python starts, is emulated too.
"""

import json
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.default_model import default_file
from tools.images.building import Built
from tools.images.container import PROMPT, once
from tools.images.outcome import Check, Skipped

QEMU = "qemu-x86_64-static"
OLDEST = "Nehalem"
"""The first with SSE4.2, which numpy needs; no AVX, no FMA."""
VARIANTS = {OLDEST: "sse42", "SandyBridge": "sandybridge", "Haswell": "haswell"}
"""Processors that qemu can emulate, and the module that is made for each; it knows neither AVX-512 nor AMX."""

_BIN = "/opt/llorch-worker/bin"
_N_TOKENS, _ANSWER = 3, "Paris."
_SMALL = ("--ctx-size", "256", "--threads", "2", "--max-tokens", str(_N_TOKENS), "--temperature", "0")
_CRASHED_AT_THE_END = 139
"""qemu 7 itself ends so when threads end, once the answer is written and before it is summed up."""


def its_code_is_chosen_for_the_processor(built: Built) -> str:
    return "; ".join(f"{processor}: {_chosen_for(processor, built)}" for processor in VARIANTS)


def _chosen_for(processor: str, built: Built) -> str:
    code, out, err = _emulated(built, processor, "devices", "--json")
    assert code == 0, f"{processor}, exit {code}: {err}"
    (cpu,) = [backend for backend in json.loads(out)["backends"] if backend["name"] == "cpu"]
    assert cpu["variant"] == VARIANTS[processor], cpu
    return f"{cpu['variant']} ({', '.join(cpu['features'])})"


def it_answers_on_an_old_processor(built: Built) -> str:
    code, out, err = _emulated(built, OLDEST, "generate", "--model", default_file().name, *_SMALL, PROMPT)
    assert code in (0, _CRASHED_AT_THE_END), f"exit {code}: {err}"
    assert out.strip() == _ANSWER, f"exit {code}: {out!r}, {err}"
    assert code or f"[{_N_TOKENS} tokens" in err, err
    return f"{OLDEST}: {out.strip()!r}{', then qemu crashed' if code else ''}"


def _emulated(built: Built, processor: str, *arguments: str) -> tuple[int, str, str]:
    """The exit code, stdout and stderr, like container.once."""
    if platform.machine() != "x86_64":
        raise Skipped("this image is not for x86-64")
    if not built.image.is_for_every_processor:
        raise Skipped("this image is not built for every processor")
    qemu = shutil.which(QEMU)
    if qemu is None:
        raise Skipped(f"{QEMU} is not installed")
    with _python_in_qemu(processor) as folder:
        # Not as PID 1, which qemu's signal for an illegal instruction would not end.
        options = (f"--volume={qemu}:/qemu:ro", f"--volume={folder}:{_BIN}:ro", "--pid=host")
        return once(built, "-m", "worker", *arguments, program=f"{_BIN}/python3", options=options)


@contextmanager
def _python_in_qemu(processor: str) -> Iterator[Path]:
    """A folder to lie over the image's own: its `python3` runs the system's Python in qemu, under its own name."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        python = folder / "python3"
        python.write_text(f'#!/bin/sh\nexec /qemu -cpu {processor} -0 {_BIN}/python3 /usr/bin/python3 "$@"\n')
        python.chmod(0o755)
        yield folder


CHECKS: tuple[Check[Built], ...] = (its_code_is_chosen_for_the_processor, it_answers_on_an_old_processor)
