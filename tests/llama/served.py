"""An engine over the real library, and the messages of each of its jobs."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from msgspec.structs import replace

from tests.queued import queued
from worker.engine.backend import LoadedDraft
from worker.engine.config import EngineConfig
from worker.engine.loop import Engine
from worker.llama.runner import LlamaRunner
from worker.wire.jobs import JobKey, Logprob, SamplingParams, StepDone, TokenId
from worker.wire.messages import Outbound

GREEDY = SamplingParams(seed=0, temperature=0.0, ignore_eos=True, logprobs=0)


class Served:
    """No time goes by, so that every step still takes as long as it is expected to."""

    def __init__(
        self,
        runner: LlamaRunner,
        config: EngineConfig,
        sampling: SamplingParams = GREEDY,
        *,
        while_running: Callable[[], AbstractContextManager[None]] = nullcontext,
        draft: LoadedDraft | None = None,
    ) -> None:
        self.runner = runner
        self.texts: dict[JobKey, str] = {}
        self.prompts: dict[JobKey, list[Logprob]] = {}
        self.generated: dict[JobKey, list[Logprob]] = {}
        self.n_cached: dict[JobKey, int] = {}
        self.ended: list[JobKey] = []
        self.warnings: list[str] = []
        self.n_preempted = self.n_drafted = self.n_accepted = 0
        self._sampling = sampling
        self.engine = Engine(
            *(runner, config),
            emit=self._hear,
            clock=lambda: 0.0,
            while_running=while_running,
            draft=draft,
            warn=self.warnings.append,
        )

    def _hear(self, message: Outbound) -> None:
        if isinstance(message, StepDone):
            self.n_preempted += message.n_preempted
            self.n_drafted += message.n_drafted
            self.n_accepted += message.n_accepted
            self.n_cached |= {started.job: started.n_cached for started in message.started}
            for part in message.prompt_logprobs:
                self.prompts[part.job] += part.tokens
            for delta in message.deltas:
                self.texts[delta.job] += delta.text
                self.generated[delta.job] += [delta.logprob] if delta.logprob is not None else []
            self.ended += [end.job for end in message.finished]
            assert not message.failed

    def submit(
        self,
        prompt: list[TokenId],
        max_tokens: int,
        n_top: int | None = None,
        *,
        sampling: SamplingParams | None = None,
        prediction: Sequence[TokenId] = (),
    ) -> JobKey:
        """Job keys count up from 0."""
        job = JobKey(len(self.texts))
        self.texts[job], self.prompts[job], self.generated[job] = "", [], []
        asked = queued(
            job, prompt, max_tokens, sampling or self._sampling, prompt_logprobs=n_top, prediction=prediction
        )
        self.engine.submit(asked)
        return job

    def run(self) -> None:
        while not self.engine.is_idle:
            self.engine.step()

    def ask(
        self,
        prompts: Sequence[list[TokenId]],
        n_tokens: int,
        temperature: float = 0.0,
        expected: Sequence[Sequence[TokenId]] = (),
    ) -> list[list[TokenId]]:
        """All at once, with a seed each. Their clients predict what is expected, but every seventh token."""
        jobs = []
        for prompt, answer in zip(prompts, expected or [()] * len(prompts), strict=True):
            sampling = replace(self._sampling, seed=len(self.texts), temperature=temperature)
            guess = [TokenId(max(0, token - (i % 7 == 6))) for i, token in enumerate(answer)]
            jobs.append(self.submit(prompt, n_tokens, sampling=sampling, prediction=guess))
        self.run()
        return [self.answer(job) for job in jobs]

    def answer(self, job: JobKey) -> list[TokenId]:
        """The tokens of a job that asked for log-probabilities."""
        return [one.token.id for one in self.generated[job]]
