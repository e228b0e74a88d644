"""What a step at 16 streams costs more with --kv-events and --prefix-cache-dir, and what metrics cost beside it.

    PYTHONPATH=. .venv/bin/python scripts/fleet_costs.py MODEL.gguf [ROUNDS]

One process and one loaded model, with both and without in turns: two processes with the same flags differ by more than
what is looked for. No sockets. Measure on an idle machine; a round takes half a minute on two processors.
"""

import gc
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import click

from tools.bench.steps import timed_round
from worker.config import cache_dir
from worker.config.settings import Settings
from worker.engine.config import EngineConfig
from worker.front.client import configure
from worker.front.link import shared_memory
from worker.front.metrics import Metrics
from worker.llama.load import load_model
from worker.llama.runner import LlamaRunner

N_STREAMS, N_ROUNDS, N_OBSERVED = 16, 16, 100_000
KEPT_WITHIN_S = 20.0


def main(model: str, rounds: str = str(N_ROUNDS)) -> None:
    with TemporaryDirectory() as folder, shared_memory() as arena_fd:
        directory = Path(folder) / "cache"
        cache_dir.prepare(directory)
        settings = Settings(threads=2, parallel=N_STREAMS, ctx_size=16_384, prefix_cache_dir=directory)
        config = configure(settings, Path(model), arena_fd=arena_fd)
        loaded = load_model(config, lambda _: None)
        runner, find, flush = loaded.runner, loaded.find, loaded.flush
        if not isinstance(runner, LlamaRunner) or find is None or flush is None:
            sys.exit("nothing of this model is kept")
        find(lambda _: None)
        gc.freeze()  # as the engine's process does
        without = replace(EngineConfig.of(config, loaded), row_costs=())
        telling = replace(without, tells_blocks=True)
        keeper = runner.kv.keeper

        def timed(seed: int, *, is_on: bool) -> tuple[float, float]:
            runner.kv.keeper = keeper if is_on else None
            times = timed_round(telling if is_on else without, runner, N_STREAMS, seed)
            flush(KEPT_WITHIN_S)
            return times

        ratios, rests_on, rests_off = [], [], []
        for seed in range(int(rounds)):
            took = {is_on: timed(seed, is_on=is_on) for is_on in sorted((True, False), reverse=bool(seed % 2))}
            (on_s, on_decode_s), (off_s, off_decode_s) = took[True], took[False]
            ratios.append(on_s / off_s)
            rests_on.append(on_s - on_decode_s)
            rests_off.append(off_s - off_decode_s)
            click.echo(f"round {seed + 1}: {1e3 * on_s:.2f} ms with, {1e3 * off_s:.2f} ms without, {on_s / off_s:.4f}")
        runner.close()
    click.echo(f"median ratio {median(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f})")
    click.echo(f"beyond llama_decode {1e6 * median(rests_on):.0f} µs with, {1e6 * median(rests_off):.0f} µs without")
    click.echo(f"metrics of a token {1e6 * a_token_s():.2f} µs in the front")


def a_token_s() -> float:
    metrics = Metrics("worker")
    began_s = time.perf_counter()
    for _ in range(N_OBSERVED):
        metrics.next_token(gap_s=0.05)
    return (time.perf_counter() - began_s) / N_OBSERVED


if __name__ == "__main__":
    main(*sys.argv[1:])
