"""The first token of a next turn: warm, after the engine was killed, and after a restart with --prefix-cache-dir.

    .venv/bin/python scripts/prefix_cache_survival.py MODEL.gguf [FLAGS of serve …]

Several conversations of about 1,000 tokens; each turn but the first finds its beginning in the prefix index. Prints the
median in milliseconds of the first pass over them, where cells that were found again are loaded for the first time,
and of the passes after it. Measure on an idle machine.
"""

import statistics
import sys
import time
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.worker_process import WorkerProcess, eventually

N_CONVERSATIONS, N_PASSES = 3, 6
STORY = "The fisherman mended his nets while the gulls cried over the harbour and the tide went out. " * 50
ALL_THREADS = {"LLORCH_THREADS": "0"}


def main(model: str, *flags: str) -> None:
    with TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"

        def serve() -> WorkerProcess:
            kept = ("--prefix-cache-dir", str(cache))
            return WorkerProcess("--model", model, "--port", "0", *kept, *flags, environment=ALL_THREADS)

        with serve() as worker:
            worker.ready()
            turns = [f"{number}. {STORY}" for number in range(N_CONVERSATIONS)]
            turns = [f"{turn}{worker.text(prompt=turn, max_tokens=4)} And" for turn in turns]
            say("computed, then never stopped", worker, turns)
            eventually(lambda: len(list(cache.glob("*.kv"))) >= N_CONVERSATIONS)
            worker.engine.kill()
            worker.wait_for("model_load_complete")
            eventually(lambda: worker.get("/readyz").is_success)
            say("after the engine was killed", worker, turns)
            worker.terminate()
            worker.exit_code()
        with serve() as worker:
            say("after a restart", worker.ready(), turns)


def say(when: str, worker: WorkerProcess, turns: list[str]) -> None:
    passes = [[first_token_s(worker, turn) for turn in turns] for _ in range(N_PASSES)]
    first, later = median_ms(passes[0]), median_ms(chain(*passes[1:]))
    sys.stdout.write(f"{when}: first pass {first:.1f} ms, later {later:.1f} ms, ratio {first / later:.2f}\n")
    sys.stdout.flush()


def first_token_s(worker: WorkerProcess, prompt: str) -> float:
    began_s = time.perf_counter()
    with worker.stream(prompt=prompt, max_tokens=2) as stream:
        stream.until("token")
        took_s = time.perf_counter() - began_s
        list(stream)
    return took_s


def median_ms(seconds: Iterable[float]) -> float:
    return 1000 * statistics.median(seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
