"""The room of llama.cpp: nothing else in the worker touches the library or ctypes.

Importing any part of it loads the library, which may be impossible on this machine. Raises: ModelLoadFailed then.

Steps run on the step thread, and prompts are read on the intake thread.
"""

import sys
from pathlib import Path

from worker.errors import ModelLoadFailed
from worker.llama.reasons import unloadable

VENDORED = Path(__file__).parents[1] / "_vendor"
"""The folder of the llama.cpp that a self-contained wheel of the worker brings (tools/wheel.py). There it goes before a
llama-cpp-python that may be installed beside it, which is neither loaded nor changed. A checkout has no such folder."""

PACKAGE = "llorch-worker" if VENDORED.is_dir() else "llama-cpp-python"
"""The package that brings llama.cpp, by its name for pip; errors name it."""

if VENDORED.is_dir():
    sys.path.insert(0, str(VENDORED))

try:
    import llama_cpp  # noqa: F401 - the modules of this room import it again; here its failure gets its words
except (RuntimeError, FileNotFoundError) as error:
    raise ModelLoadFailed(unloadable(str(error), PACKAGE)) from error
