"""An answer whose deltas become events: the part that Responses and Messages share.

Owns: the way of a job's text through the reader. Pure except for the ids of calls. `token` is called for every token.
"""

from abc import abstractmethod
from collections.abc import Sequence

from worker.chat.parse import Delta
from worker.openai.answers import Allowance, Choice
from worker.openai.reading import ReadAnswer, Reading
from worker.wire.jobs import Logprob


class EventChoice(Choice):
    """The one answer of a request. Subclasses decide whether its events leave or are held."""

    def __init__(self, reading: Reading) -> None:
        super().__init__(0, Allowance())
        self._answer = ReadAnswer(reading)

    def token(
        self,
        text: str,
        index: int,  # noqa: ARG002
        logprobs: Sequence[Logprob] = (),
        n_sampled: int = 0,  # noqa: ARG002
        *,
        is_reasoning: bool = False,
    ) -> bytes:
        self._hold(len(text))
        return self._grown(self._answer.push(text, logprobs, is_reasoning=is_reasoning))

    def rewind(self) -> None:
        super().rewind()
        self._answer.rewind()

    @abstractmethod
    def _grown(self, deltas: Sequence[Delta]) -> bytes:
        """Take the deltas into the answer; return the bytes of their events that leave now."""
