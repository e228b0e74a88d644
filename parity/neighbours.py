"""Eight jobs that load the worker during a judged job: streams of different lengths that start, end, are cancelled or
abandoned.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Literal, Self

from client.execute import Answer, Event, Request, Token, answer_of, unanswered
from client.worker import UNANSWERED, ServedWorker

Ending = Literal["runs to its end", "is cancelled", "is given up"]

N_NEIGHBOURS = 8
FLAGS = ("--parallel", str(N_NEIGHBOURS + 1))
"""Flags of a worker that has a slot for one job and for each of its neighbours."""

N_WORDS = (3, 24, 8, 60, 4, 40, 12, 150)
"""The lengths of each neighbour's prompts: some are read in one step, some in many."""
N_TOKENS = (64, 24, 96, 40, 80, 32, 48, 20)
ENDINGS: tuple[Ending, ...] = ("runs to its end", "is cancelled", "runs to its end", "is given up")
"""The endings in turn, starting at the neighbour's number."""
N_BEFORE_ENDING = 9
"""Token events before a job is cancelled or given up."""
_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class NeighbourJob:
    """One job that was there."""

    request: Request
    ending: Ending
    answer: Answer

    @property
    def is_right(self) -> bool:
        """True if it ended as expected. A client that has left receives nothing."""
        if self.ending == "is given up":
            return not self.answer.error
        if self.answer.n_terminal != 1:
            return False
        is_cancelled = self.answer.error.startswith("CANCELLED")
        # One that is cancelled may come to its end first.
        return not self.answer.error or (is_cancelled and self.ending == "is cancelled")


class Neighbours:
    """There from entry to exit. At exit the open jobs are given up, and all threads have ended."""

    def __init__(self, worker: ServedWorker) -> None:
        self._worker = worker
        self._stop = threading.Event()
        self._begun = threading.Semaphore(0)
        self._n_received = [0] * N_NEIGHBOURS
        self._jobs: list[list[NeighbourJob]] = [[] for _ in range(N_NEIGHBOURS)]
        self._threads = [threading.Thread(target=self._live, args=(number,)) for number in range(N_NEIGHBOURS)]

    def __enter__(self) -> Self:
        """Start the neighbours. Every one has received a token, or has ended without one, when this returns."""
        try:
            for thread in self._threads:
                thread.start()
            for _ in self._threads:
                self._begun.acquire(timeout=_PATIENCE_S)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(_PATIENCE_S)

    @property
    def jobs(self) -> tuple[NeighbourJob, ...]:
        """The finished jobs."""
        return tuple(job for jobs in self._jobs for job in jobs)

    def beside(self, ask: Callable[[], Answer]) -> tuple[Answer, int]:
        """An answer, and the number of neighbours that received tokens while it was generated."""
        before = list(self._n_received)
        answer = ask()
        return answer, sum(now > then for now, then in zip(self._n_received, before, strict=True))

    def _live(self, number: int) -> None:
        """One neighbour's thread: one job after another until it must stop, or until one is refused."""
        for turn in count():
            job = self._job(number, turn)
            self._jobs[number].append(job)
            if self._stop.is_set() or job.answer.seed is None:
                break
        if self._n_received[number] == 0:
            self._begun.release()

    def _job(self, number: int, turn: int) -> NeighbourJob:
        request, ending = self._request(number, turn), ENDINGS[(number + turn) % len(ENDINGS)]
        received: list[Event] = []
        try:
            with self._worker.stream(request) as stream:
                for event in stream:
                    received.append(event)
                    if isinstance(event, Token) and self._has_left(number, request.job_id, ending, received):
                        ending = "is given up"
                        break
        except UNANSWERED as error:
            return NeighbourJob(request, ending, unanswered(request.job_id, error))
        return NeighbourJob(request, ending, answer_of(request.job_id, received))

    def _has_left(self, number: int, job_id: str, ending: Ending, received: Sequence[Event]) -> bool:
        """Count a token and do what ends the job; whether its stream is to be left."""
        self._n_received[number] += 1
        if self._n_received[number] == 1:
            self._begun.release()
        is_time = sum(isinstance(event, Token) for event in received) == N_BEFORE_ENDING
        if is_time and ending == "is cancelled":
            self._worker.cancel(job_id)
        return self._stop.is_set() or (is_time and ending == "is given up")

    def _request(self, number: int, turn: int) -> Request:
        text = f"{number} {turn} " + "and some more words " * (N_WORDS[number] // 4 + 1)
        return Request(
            job_id=f"parity-neighbour-{number}-{turn}",
            # A token has at least a byte: half of the context is left to the answer, whatever the vocabulary.
            prompt=text[: max(1, self._worker.health.context_length // 2)],
            max_tokens=N_TOKENS[number],
            temperature=1.0,
            logprobs=0,
            seed=1000 * number + turn,
        )
