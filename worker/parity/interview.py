"""Every question that the serving level asks a running worker, in its order, and all that was answered.

Owns the questions, the company beside which they are asked, and the transcript. Refuses to judge (levels/serving.py).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from worker.parity.answers import N_DRAWN, N_TOP, Answer, Request
from worker.parity.company import Company, Neighbour
from worker.parity.serving import SelfTest, ServedWorker
from worker.protocol.execute import narrow

SEEDS = (7, 42, 2**64 - 1)
TEMPERATURE = narrow(0.8)
N_UNSEEDED = 2
"""Prompts that are asked twice without a seed."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt by its number, and how it is continued."""

    number: int
    seed: int | None
    """None is greedy."""

    @property
    def decoding(self) -> str:
        return "greedy" if self.seed is None else f"seed {self.seed}"


class Record(msgspec.Struct, frozen=True):
    """One job as a line of the transcript."""

    phase: str
    """alone, repeated, unseeded, beside; neighbour and what was to become of it."""
    request: Request
    seed: int | None
    """As the worker reported it."""
    tokens: tuple[int, ...]
    text: str
    stop_reason: str
    error: str


@dataclass(frozen=True, slots=True)
class Heard:
    """All answers. `alone` and `beside` have every question, `repeated` those with a seed."""

    alone: dict[Question, Answer]
    repeated: dict[Question, Answer]
    unseeded: tuple[tuple[Answer, Answer], ...]
    beside: dict[Question, Answer]
    neighbours: tuple[Neighbour, ...]
    least_company: int
    """The fewest neighbours that were told tokens during one answer."""
    records: tuple[Record, ...]
    self_test: SelfTest

    @property
    def answers(self) -> tuple[Answer, ...]:
        pairs = (answer for pair in self.unseeded for answer in pair)
        return (*self.alone.values(), *self.repeated.values(), *pairs, *self.beside.values())


def interview(worker: ServedWorker, prompts: Sequence[str], n_tokens: int) -> Heard:
    """Ask every prompt greedily and with every seed, alone and beside others; with a seed alone once more."""
    asker = _Asker(worker, prompts, n_tokens)
    questions = [Question(number, seed) for number in range(len(prompts)) for seed in (None, *SEEDS)]
    seeded = [question for question in questions if question.seed is not None]
    alone = asker.ask_each(questions, "alone")
    repeated = asker.ask_each(seeded, "repeated")
    unseeded = tuple(asker.ask_twice(number) for number in range(min(N_UNSEEDED, len(prompts))))
    with Company(worker) as company:
        beside = asker.ask_beside(questions, company)
    return Heard(
        alone=alone,
        repeated=repeated,
        unseeded=unseeded,
        beside={question: answer for question, (answer, _) in beside.items()},
        neighbours=company.jobs,
        least_company=min(n_told for _, n_told in beside.values()),
        records=(*asker.records, *(_record(f"neighbour, {job.fate}", job.request, job.answer) for job in company.jobs)),
        self_test=worker.self_test(),
    )


class _Asker:
    """Numbers the jobs and keeps the records."""

    def __init__(self, worker: ServedWorker, prompts: Sequence[str], n_tokens: int) -> None:
        self._worker = worker
        self._prompts = prompts
        self._n_tokens = n_tokens
        self.records: list[Record] = []

    def ask_each(self, questions: Iterable[Question], phase: str) -> dict[Question, Answer]:
        return {question: self._ask(question, phase) for question in questions}

    def ask_beside(self, questions: Iterable[Question], company: Company) -> dict[Question, tuple[Answer, int]]:
        return {question: company.beside(partial(self._ask, question, "beside")) for question in questions}

    def ask_twice(self, number: int) -> tuple[Answer, Answer]:
        request = self._request(number, TEMPERATURE, None)
        return self._answer(request, "unseeded"), self._answer(request, "unseeded")

    def _ask(self, question: Question, phase: str) -> Answer:
        temperature = 0.0 if question.seed is None else TEMPERATURE
        return self._answer(self._request(question.number, temperature, question.seed), phase)

    def _request(self, number: int, temperature: float, seed: int | None) -> Request:
        return Request(
            job_id=f"parity-{len(self.records)}",
            prompt=self._prompts[number],
            max_tokens=self._n_tokens,
            temperature=temperature,
            logprobs=N_TOP,
            seed=seed,
            # All that can be drawn is then reported, and the draw can be checked.
            top_k=N_DRAWN if temperature else 0,
        )

    def _answer(self, request: Request, phase: str) -> Answer:
        answer = self._worker.ask(request)
        self.records.append(_record(phase, request, answer))
        return answer


def _record(phase: str, request: Request, answer: Answer) -> Record:
    return Record(phase, request, answer.seed, answer.tokens, answer.text, answer.stop_reason, answer.error)
