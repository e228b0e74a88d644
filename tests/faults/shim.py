"""The shim that makes the system fail (shim.c), and its rules."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_SOURCE = Path(__file__).with_name("shim.c")


def built(folder: Path) -> Path:
    """The library, compiled into the folder. glibc's own allocator stands behind it, so that it is Linux's only."""
    assert sys.platform == "linux"
    path = folder / "shim.so"
    compiler = ["cc", "-shared", "-fPIC", "-O1", "-x", "c", str(_SOURCE), "-o", str(path), "-ldl"]
    subprocess.run(compiler, check=True)
    return path


@dataclass(frozen=True, slots=True)
class Switch:
    """Rules that act while they are switched on."""

    shim: Path
    file: Path
    rules: str

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.shim), "FAULTS": self.rules, "FAULTS_WHILE": str(self.file)}

    def on(self) -> None:
        self.file.touch()

    def off(self) -> None:
        self.file.unlink(missing_ok=True)
