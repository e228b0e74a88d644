"""The committed reference logits, and `llorch-worker parity` in a process that has no PyTorch."""

import subprocess
import sys
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden" / "smollm2-135m-instruct-q4_1.logits.safetensors"
"""The file that `llorch-worker parity reference --model smollm2-135m-instruct --tokens 512` wrote."""

WITHOUT_TORCH = """
import sys
for name in ("torch", "transformers", "accelerate"):
    sys.modules[name] = None  # to import it is an ImportError
from worker.cli import run
sys.exit(run(sys.argv[1:]))
"""


def without_torch(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_TORCH, "parity", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
