"""One parity run: every level in its order on one case, timed.

Owns: which level gets what, and the budgets. Refuses to know: how anything is compared (levels/), where the reference
comes from (case.py), what becomes of the outcome (bundle.py).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from worker.parity import corpus, matrix
from worker.parity.bounds import Bounds
from worker.parity.case import Case, Say
from worker.parity.client import ServedWorker
from worker.parity.evidence import Candidate, longest
from worker.parity.levels import checkpoints, generation, logits, sampling, serving, tokenizer, weights
from worker.parity.llama.scoring import Scorer, Setup
from worker.parity.naming import not_comparable
from worker.parity.report import LEVELS, Level, not_run
from worker.parity.setups import EXACT, as_served, cpu, opened
from worker.wire.messages import TokenId

BUDGET_S: Final = {
    "tokenizer": 15.0,
    "weights": 30.0,
    "checkpoints": 30.0,
    "logits": 120.0,
    "generation": 45.0,
    "serving": 120.0,
    "sampling": 60.0,
}
"""Wall time on two cores with the default model, of the ten minutes that `make parity` may take."""


@dataclass(slots=True)
class Run:
    """A case on its way through the levels. `transcript` grows when the serving level runs."""

    case: Case
    bounds: Bounds
    transcript: tuple[serving.Record, ...] = ()

    def levels(self, names: Sequence[str], say: Say) -> Iterator[Level]:
        """All of LEVELS, each when it is done; those that are not among `names` as not asked for."""
        for name in LEVELS:
            if name not in names:
                yield not_run(name, "not asked for")
                continue
            say(f"level {name}")
            began_s = time.perf_counter()
            level = self._level(name)
            yield replace(level, seconds=time.perf_counter() - began_s, budget_seconds=BUDGET_S[name])

    def _level(self, name: str) -> Level:
        steps: dict[str, Callable[[], Level]] = {
            "tokenizer": self._tokenizer,
            "weights": self._weights,
            "checkpoints": self._checkpoints,
            "logits": self._logits,
            "generation": self._generation,
            "serving": self._serving,
            "sampling": self._sampling,
        }
        return steps[name]()

    def _tokenizer(self) -> Level:
        with opened(self.case.subject.info.path) as model:

            def piece(token: int) -> bytes:
                return model.piece(TokenId(token))

            texts = corpus.hard_texts()
            return tokenizer.run(model.tokenize_bytes, self.case.hard_ids, texts, self.bounds, piece=piece)

    def _weights(self) -> Level:
        case = self.case
        if case.tensors is None:
            return not_run("weights", "needs the checkpoint; reference logits hold no weights")
        return weights.run(case.subject.info.path, case.tensors, self.bounds, made_from_this_file=case.is_source)

    def _checkpoints(self) -> Level:
        case = self.case
        why = not_comparable(case.subject.info)
        if why is not None:
            return not_run("checkpoints", why)
        if case.f32_copy is None or case.expected is None:
            return not_run("checkpoints", "needs the checkpoint; reference logits hold no layers")
        return checkpoints.run(case.f32_copy, case.expected, bounds=self.bounds, n_threads=case.subject.n_threads)

    def _logits(self) -> Level:
        with self._candidates() as (file, f32_copy):
            return logits.run(self.case.reference, self.bounds, file=file, f32_copy=f32_copy)

    def _generation(self) -> Level:
        with self._candidates() as (file, f32_copy), opened(self.case.subject.info.path) as model:

            def piece(token: int) -> str:
                return model.piece(TokenId(token)).decode(errors="replace")

            return generation.run(self.case.reference, self.bounds, file=file, f32_copy=f32_copy, piece=piece)

    def _sampling(self) -> Level:
        with self._candidates() as (file, f32_copy):
            return sampling.run(self.case.reference, self.bounds, file=file, f32_copy=f32_copy)

    def _serving(self) -> Level:
        subject = self.case.subject
        prompts = corpus.prompts()
        expected = self._answers(prompts)
        with ServedWorker.of(subject.info.path, "--device", "cpu", "--threads", str(subject.n_threads)) as worker:
            level, self.transcript = serving.run(worker, prompts, expected, self.bounds)
        return level

    def _answers(self, prompts: Sequence[str]) -> serving.Expected:
        """What the file answers in this process."""
        subject = self.case.subject
        with opened(subject.info.path) as model:
            asked = [model.tokenize(prompt) for prompt in prompts]
            n_ctx = max(map(len, asked)) + serving.N_TOKENS
            with Scorer(model, as_served(cpu()), n_ctx=n_ctx, n_threads=subject.n_threads) as scorer:
                tokens = [scorer.greedy(prompt, serving.N_TOKENS) for prompt in asked]
                first_rows = [scorer.logits(prompt)[-1] for prompt in asked]
            return serving.Expected(tokens, first_rows, frozenset(model.ends.tolist()))

    @contextmanager
    def _candidates(self) -> Iterator[tuple[Candidate, Candidate | None]]:
        """The file as it is served, and the F32 copy as exactly as llama.cpp computes."""
        case = self.case
        n_ctx = longest(case.reference.windows)
        with ExitStack() as closing:

            def scorer_of(path: Path, setup: Setup) -> Scorer:
                model = closing.enter_context(opened(path))
                return closing.enter_context(Scorer(model, setup, n_ctx=n_ctx, n_threads=case.subject.n_threads))

            info = case.subject.info
            served = scorer_of(info.path, as_served(cpu()))
            file = Candidate(f"{info.quant_kind} file", info.quant_kind, served.logits, served.greedy, case.is_source)
            f32_copy = None
            if case.f32_copy is not None:
                exact = scorer_of(case.f32_copy, EXACT)
                f32_copy = Candidate("F32 copy", "F32", exact.logits, exact.greedy)
            yield file, f32_copy


def matrix_of(case: Case, bounds: Bounds, n_tokens: int, say: Say) -> Level:
    """The quantisation matrix of a case, timed."""
    began_s = time.perf_counter()
    level = matrix.run(case, bounds, say=say, n_tokens=n_tokens)
    return replace(level, seconds=time.perf_counter() - began_s)
