"""One parity run: every level in its order on one case, timed."""

import worker.llama  # noqa: F401, I001 - before numpy, which brings another C++ library
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Final

from client.worker import ServedWorker
from parity import corpus, neighbours
from parity.bounds import Bounds
from parity.case import Case, Say
from parity.evidence import Candidate, longest
from parity.levels import checkpoints, generation, logits, sampling, serving, tokenizer, weights
from parity.llama.scoring import Scorer
from parity.naming import not_comparable
from parity.report import LEVELS, Level, not_run
from parity.setups import EXACT, Served, costs_of, costs_of_graph, opened, served
from worker.config.engine import configure
from worker.config.settings import Settings, flags_of
from worker.llama.kernels import fixed
from worker.models.loading.load import placed
from worker.models.plan.placement import Placement
from worker.wire.jobs import TokenId
from worker.config.engine_settings import Configure
from worker.wire.load import Numerics

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
    settings: Settings
    """The settings that `serve` would use; their model is the case's."""
    transcript: tuple[serving.Record, ...] = ()
    numerics: Numerics | None = None
    """The numerics of the model file, after the first level that computed."""
    _placement: Placement | None = None

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
        level = checkpoints.run(case.f32_copy, case.expected, bounds=self.bounds, n_threads=case.subject.n_threads)
        return replace(level, summary=f"{level.summary}{self._beside_a_gpu}")

    def _logits(self) -> Level:
        with self._candidates() as (file, f32_copy):
            return logits.run(self.case.reference, self.bounds, file=file, f32_copy=f32_copy)

    def _generation(self) -> Level:
        with self._candidates() as (file, f32_copy), opened(self.case.subject.info.path) as model:

            def piece(token: int) -> str:
                return model.piece(TokenId(token)).decode(errors="replace")

            return generation.run(self.case.reference, self.bounds, file=file, f32_copy=f32_copy, piece=piece)

    def _sampling(self) -> Level:
        return sampling.run(self.case.reference, self.bounds)

    def _serving(self) -> Level:
        subject = self.case.subject
        prompts = corpus.prompts()
        expected = self._answers(prompts)
        numerics = self.numerics
        assert numerics is not None
        # If threads split sums, or matrices replace rows, a row's bits depend on the other rows on a CPU, too.
        kind = None if numerics.flash_attn and numerics.threads is None else "other"
        settings = replace(self.settings, kernels=fixed(self.settings.kernels))
        flags = flags_of(settings, "Device and memory", also=("deterministic",))
        with ServedWorker.of(subject.info.path, *neighbours.FLAGS, *flags) as worker:
            level, self.transcript = serving.run(worker, prompts, expected, self.bounds, kind=kind)
        return level

    def _answers(self, prompts: Sequence[str]) -> serving.Expected:
        """The answers of the file in this process."""
        with opened(self.case.subject.info.path) as model:
            asked = [model.tokenize(prompt) for prompt in prompts]
            ends = frozenset(model.ends.tolist())
        with self._served(max(map(len, asked)) + serving.N_TOKENS) as file:
            tokens = [file.scorer.greedy(prompt, serving.N_TOKENS) for prompt in asked]
            first_rows = [file.scorer.logits(prompt)[-1] for prompt in asked]
        return serving.Expected(tokens, first_rows, ends)

    @contextmanager
    def _candidates(self) -> Iterator[tuple[Candidate, Candidate | None]]:
        """The file as it is served, and the F32 copy as exactly as llama.cpp computes."""
        case = self.case
        kind, n_ctx = case.subject.info.quant_kind, longest(case.reference.windows)
        with ExitStack() as closing:
            found = closing.enter_context(self._served(n_ctx))
            scorer, architecture = found.scorer, case.subject.info.architecture
            costs = costs_of(found.numerics, architecture)
            file = Candidate(f"{kind} file", kind, scorer.logits, scorer.greedy, case.is_source, costs)
            f32_copy = None
            if case.f32_copy is not None:
                model = closing.enter_context(opened(case.f32_copy))
                exact = closing.enter_context(Scorer(model, EXACT, n_ctx=n_ctx, n_threads=case.subject.n_threads))
                f32_copy = Candidate(
                    f"F32 copy{self._beside_a_gpu}",
                    "F32",
                    exact.logits,
                    exact.greedy,
                    allowed_for=costs_of_graph(architecture),
                )
            yield file, f32_copy

    @property
    def _config(self) -> Configure:
        return configure(self.settings, self.case.subject.info.path)

    @property
    def placement(self) -> Placement:
        """The placement that `serve` would choose; it is chosen once for all levels."""
        if self._placement is None:
            self._placement = placed(self._config, self.case.subject.info)
        return self._placement

    @property
    def _beside_a_gpu(self) -> str:
        """The note about the F32 copy if the file is on a GPU: bounds for float32 are known for CPUs only."""
        return " (on the CPU, not on the GPU)" if self.placement.group.is_gpu else ""

    @contextmanager
    def _served(self, n_ctx: int) -> Iterator[Served]:
        subject = self.case.subject
        with served(self._config, subject.info, self.placement, n_ctx=n_ctx, n_threads=subject.n_threads) as found:
            self.numerics = found.numerics
            yield found
