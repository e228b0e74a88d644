"""What a decode step costs beyond llama_decode itself: the engine's own work for each token. For `bench` only.

Owns the run: the ordinary engine over a loaded model, frames encoded and thrown away, no sockets. Nothing is guessed.
"""

import gc
import time
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from worker.engine.backend import LoadedModel
from worker.engine.loop import Engine
from worker.engine.rules import Rules
from worker.engine.sequence import Sequence, State
from worker.llama.load import load_model
from worker.llama.runner import LlamaRunner
from worker.wire.frames import encode_frame
from worker.wire.messages import Configure, JobKey, Outbound, Sampling, TokenId

N_PROMPT, N_TOKENS = 85, 96
"""As `llama-bench -d 85 -n 96`."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Medians over the rounds, of steps in which all streams generate."""

    n_streams: int
    step_ms: float
    decode_ms: float
    """Of these, within llama_decode."""
    python_us: float
    """The rest."""
    overhead: float
    """The rest, as a share of llama_decode."""


def step_costs(config: Configure, n_streams: int, n_rounds: int) -> StepCosts:
    """Greedy streams of their own random tokens, side by side, `n_rounds` times.

    Raises: as loading does.
    """
    model = load_model(config, lambda _: None)
    runner = model.runner
    assert isinstance(runner, LlamaRunner)
    gc.freeze()  # as the engine's process does
    try:
        rounds = [_round(config, model, runner, n_streams, seed) for seed in range(n_rounds)]
    finally:
        runner.close()
    step_s, decode_s = median(step for step, _ in rounds), median(decode for _, decode in rounds)
    rest_s = median(step - decode for step, decode in rounds)
    return StepCosts(n_streams, 1e3 * step_s, 1e3 * decode_s, 1e6 * rest_s, rest_s / decode_s)


def _round(
    config: Configure, model: LoadedModel, runner: LlamaRunner, n_streams: int, seed: int
) -> tuple[float, float]:
    """Seconds of a step, and of its llama_decode, on average."""
    rules = replace(Rules.of(config, model), row_costs=())
    engine = Engine(runner, rules, emit=_encode, clock=time.monotonic)
    rng = np.random.default_rng(seed)
    sampling = Sampling(seed=0, temperature=0.0, ignore_eos=True)
    jobs = [JobKey(job) for job in range(n_streams)]
    for job in jobs:
        prompt = [TokenId(token) for token in rng.integers(0, runner.model.n_vocab, N_PROMPT).tolist()]
        # None ends before the last has begun, however slowly the prompts are read beside it.
        engine.submit(job, prompt, n_streams * N_PROMPT + N_TOKENS, sampling)
    while any(one.state is not State.DECODE for one in _all_of(engine)):
        engine.step()
    decoding_s, began_s = runner.context.decoding_s, time.perf_counter()
    for _ in range(N_TOKENS):
        engine.step()
    taken_s = time.perf_counter() - began_s
    decoding_s = runner.context.decoding_s - decoding_s
    for job in jobs:
        engine.cancel(job)
    engine.put_away()
    return taken_s / N_TOKENS, decoding_s / N_TOKENS


def _all_of(engine: Engine) -> list[Sequence]:
    return [*engine.scheduler.waiting, *engine.scheduler.running.values()]


def _encode(frame: Outbound) -> None:
    encode_frame(0, frame)
