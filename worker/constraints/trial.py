"""Compiling a constraint in a process of its own first, with limits on its time and memory that the library lacks.

llguidance counts its fuel only between the steps of its work. A list of 1,000 `patternProperties` keeps it busy for
minutes, and 20,000 optional letters take a gigabyte. So `survives` lets a child try, which is killed where the engine
would hang. The child is this file run as a program: it starts in some 20 ms, because it imports nothing of the worker.
"""

import subprocess
import sys
from functools import lru_cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import Any

MAX_CPU_S = 0.3
"""The processor time of the child; the engine spends up to twice as much again on what survives. Ordinary constraints
take 0.03 s."""

MAX_BYTES = 80 * 1024 * 1024
"""The child's private memory, of which Python and the library take 30 MiB."""

MAX_WALL_S = 10.0
"""It is longer than the processor time, for a machine that has others to serve."""


@lru_cache(maxsize=64)
def survives(library: str, source: str) -> bool:
    """Return whether the library compiles or refuses a source within the limits. `library`: the path of its binary."""
    program = [sys.executable, "-I", "-S", __file__, library]
    try:
        child = subprocess.run(
            program,
            input=source.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=MAX_WALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return child.returncode == 0


class _Bytes:
    """The smallest tokenizer there is: a token for each byte, and an end."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    eos_token_id = 256
    special_token_ids = (256,)
    tokens = (*(bytes([value]) for value in range(256)), b"\xff<end>")

    def _encode_string(self, text: str) -> list[int]:
        return list(text.encode())


def _try(path: str) -> None:
    """Compile standard input within the limits."""
    import resource  # noqa: PLC0415 - Windows has none, and this does not run there
    import signal  # noqa: PLC0415

    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_BYTES, MAX_BYTES))
    loader = ExtensionFileLoader("_lib", path)
    spec = spec_from_loader("_lib", loader)
    assert spec is not None
    library: Any = module_from_spec(spec)
    loader.exec_module(library)
    tokenizer = library.LLTokenizer(_Bytes(), n_vocab=len(_Bytes.tokens), slices=[])
    matcher = library.LLMatcher(tokenizer, sys.stdin.buffer.read().decode(), log_level=0)
    # To report where it panicked the library reads its own debug information, for 50 MiB that stay.
    sys.exit(matcher.get_error().startswith("panic"))


if __name__ == "__main__":
    _try(sys.argv[1])
