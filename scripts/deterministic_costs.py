"""What --deterministic costs on this machine: one model's decode steps and prefill chunks, with the flag and without.

    .venv/bin/python scripts/deterministic_costs.py MODEL.gguf [THREADS]

Prints milliseconds, the median of several rounds, for 1, 2, 4 and 8 jobs' steps and for a chunk of 64 tokens, and the
row groups that the flag's self-test chose. Measure on an idle machine.
"""

import statistics
import sys
import time
from pathlib import Path
from typing import cast

from worker.config.settings import Settings
from worker.engine.backend import Slice, Step
from worker.front.client import configure
from worker.llama.load import load_model
from worker.llama.runner import LlamaRunner
from worker.wire.messages import Sampling, SlotId, StepKind, TokenId

WIDTHS = (1, 2, 4, 8)
CHUNK = 64
N_ROUNDS = 9
GREEDY = Sampling(seed=0, temperature=0.0)


def main(path: str, threads: str = "0") -> None:
    for is_deterministic in (False, True):
        settings = Settings(
            model=path, device="cpu", threads=int(threads), ctx_size=2048, parallel=8, deterministic=is_deterministic
        )
        model = load_model(configure(settings, Path(path)), lambda _: None)
        runner = cast(LlamaRunner, model.runner)
        groups = runner.context.row_groups
        if is_deterministic and model.self_test is not None:
            *_, found = model.self_test()
            groups = runner.context.row_groups
            say(f"self-test: {'same' if found and found.is_same else 'differs'}")
        say(f"deterministic={is_deterministic}: steps filled to {groups.multiple}, {groups.most or 'all'} rows at once")
        for width in WIDTHS:
            rows = tuple(Slice(SlotId(slot), 0, [TokenId(slot + 5)], GREEDY) for slot in range(width))
            say(f"  {width} rows: {milliseconds(runner, 'decode', rows):8.2f} ms")
        chunk = (Slice(SlotId(0), 0, [TokenId(5 + i % 50) for i in range(CHUNK)], GREEDY),)
        say(f"  {CHUNK} tokens of a prompt: {milliseconds(runner, 'prefill', chunk):8.2f} ms")
        runner.close()


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


def milliseconds(runner: LlamaRunner, kind: StepKind, slices: tuple[Slice, ...]) -> float:
    took = []
    for _ in range(N_ROUNDS):
        runner.kv.clear()
        began_s = time.perf_counter()
        runner.run(Step(kind, slices))
        took.append(time.perf_counter() - began_s)
    runner.kv.clear()
    return 1000 * statistics.median(took)


if __name__ == "__main__":
    main(*sys.argv[1:])
