"""`make clients-test`: lm-eval's `local-completions` over HTTP sees the numbers of the PyTorch reference.

The worker serves the reference's weights in F32, with F32 KV memory: what may remain is float32 against float64, the
bounds of `logits.twin`. lm-eval takes its tokens from the worker (`tokenizer_backend=remote`).
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity.bounds import Bounds
from parity.reference.model import Reference
from tests.clients.environments import environment
from tests.worker_process import Event, serve_default

pytestmark = [pytest.mark.process, pytest.mark.model, pytest.mark.torch, pytest.mark.clients, pytest.mark.timeout(1800)]

TASK = Path(__file__).parents[1] / "clients" / "task"
EXACT = ("--cache-type-k", "f32", "--cache-type-v", "f32", "--flash-attn", "off", "--ctx-size", "4096")


@pytest.fixture(scope="module")
def evaluated(f32_copy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Event]]:
    """The entries that lm-eval wrote for each task, one a document."""
    folder = tmp_path_factory.mktemp("lm-eval")
    shutil.copytree(TASK, folder, dirs_exist_ok=True)
    with serve_default(f32_copy, *EXACT) as worker:
        address = f"base_url={worker.ready().url}/v1/completions"
        arguments = f"model=any,{address},tokenizer_backend=remote,num_concurrent=8,max_retries=1"
        environment("lm-eval").run(
            *("lm_eval", "--model", "local-completions", "--model_args", arguments),
            *("--tasks", "llorch_choices,llorch_endings", "--include_path", "."),
            *("--output_path", "out", "--log_samples"),
            cwd=folder,
        )
    return {task: samples(folder, task) for task in ("llorch_choices", "llorch_endings")}


def samples(folder: Path, task: str) -> list[Event]:
    (path,) = folder.glob(f"out/**/samples_{task}_*.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def asked(sample: Event) -> list[tuple[str, str]]:
    """The context and the continuation of each request of a document."""
    return [(each["arg_0"], each["arg_1"]) for _, each in sorted(sample["arguments"].items())]


def reported(sample: Event) -> list[tuple[float, bool]]:
    """The log-likelihood of each of them, and whether greedy decoding would give it."""
    return [(float(likelihood), is_greedy in {True, "True"}) for ((likelihood, is_greedy),) in sample["resps"]]


def expected(reference: Reference, context: str, continuation: str) -> tuple[float, bool, int]:
    """The reference's, and of how many tokens: split as lm-eval does, which leaves the context's last space to the
    continuation.
    """
    n_spaces = len(context) - len(context.rstrip())
    if n_spaces:
        context, continuation = context[:-n_spaces], context[-n_spaces:] + continuation
    whole = reference.tokenize(context + continuation)
    n_context = len(reference.tokenize(context))
    rows = reference.logits(whole[:-1])[n_context - 1 :]
    tokens = whole[n_context:]
    above = rows - rows.max(-1, keepdims=True)
    logprobs = above - np.log(np.exp(above).sum(-1, keepdims=True))
    likelihood = float(logprobs[np.arange(len(tokens)), tokens].sum())
    return likelihood, bool((rows.argmax(-1) == tokens).all()), len(tokens)


@pytest.mark.parametrize("task", ["llorch_choices", "llorch_endings"])
def test_log_likelihoods_are_the_references_and_so_is_every_verdict(
    task: str, evaluated: dict[str, list[Event]], reference: Reference, bounds: Bounds
) -> None:
    """A logit that is off by e moves a log-probability by 2 e at most."""
    found = evaluated[task]
    assert len(found) == len((TASK / f"{task.removeprefix('llorch_')}.jsonl").read_text().splitlines())
    most = 2 * bounds.bound("logits.twin.short.max_error").value
    worst = 0.0
    for sample in found:
        ours = reported(sample)
        theirs = [expected(reference, *pair) for pair in asked(sample)]
        for (likelihood, is_greedy), (right, is_highest, n_tokens) in zip(ours, theirs, strict=True):
            worst = max(worst, abs(likelihood - right) / n_tokens)
            assert is_greedy == is_highest
        assert sample["acc"] == verdict(sample["doc"], theirs)
    assert worst <= most, worst
    sys.stdout.write(f"\n{task}: {len(found)} documents, at most {worst:.1e} nats a token from the reference\n")


def verdict(document: dict[str, Any], theirs: list[tuple[float, bool, int]]) -> float:
    """lm-eval's `acc` when the reference answers."""
    if "answer" in document:
        return float(int(np.argmax([likelihood for likelihood, _, _ in theirs])) == document["answer"])
    ((_, is_greedy, _),) = theirs
    return float(is_greedy)
