"""The circumstances of a round: machine, GPU, toolkit, code. It calls nvidia-smi and nvcc if they exist, and does not
load llama.cpp."""

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

from parity.provenance import now_rfc3339, this_machine, versions
from tools.cuda_check.report import Gpu, Machine, Report
from worker.host import available_memory_bytes, cpu_quota

_ASKED = ("name", "driver_version", "compute_cap", "memory.total")
_MIB = 2**20
_TIMEOUT_S = 60.0


def new_report(device: str, *, is_small: bool, wheel: Path | None = None) -> Report:
    """A report without steps, of this machine and this moment. `wheel`: what llama.cpp was installed from."""
    machine = this_machine(cpu_quota())
    return Report(
        device=device,
        created=now_rfc3339(),
        commit=_said("git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD").strip(),
        wheel=hashlib.sha256(wheel.read_bytes()).hexdigest() if wheel else "",
        is_small=is_small,
        machine=Machine(
            cpu=machine.cpu,
            n_cores=machine.n_cores,
            n_usable=machine.n_usable,
            memory_bytes=available_memory_bytes(),
            system=machine.system,
        ),
        gpu=parse_gpu(
            _said("nvidia-smi", f"--query-gpu={','.join(_ASKED)}", "--format=csv,noheader,nounits"),
            _said("nvcc", "--version"),
        ),
        versions=versions(),
    )


def parse_gpu(smi: str, nvcc: str) -> Gpu:
    """The GPU from the output of nvidia-smi and nvcc; "" for a missing one. A GPU that reports no memory has 0
    bytes."""
    release = re.search(r"release ([\d.]+)", nvcc)
    toolkit = release[1] if release else ""
    values = [value.strip() for value in smi.partition("\n")[0].split(",")]
    if len(values) != len(_ASKED):
        return Gpu(toolkit=toolkit)
    name, driver, capability, memory_mib = values
    memory_bytes = int(memory_mib) * _MIB if memory_mib.isdecimal() else 0
    return Gpu(name=name, driver=driver, compute_capability=capability, memory_bytes=memory_bytes, toolkit=toolkit)


def _said(program: str, *arguments: str) -> str:
    """The output of the command; "" if it is missing or fails."""
    path = shutil.which(program)
    if path is None:
        return ""
    try:
        run = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout if run.returncode == 0 else ""
