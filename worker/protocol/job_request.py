"""What a door asks of the front, whichever door it is: `/execute` or `/v1`. Pure data."""

from dataclasses import dataclass

from worker.protocol.events import Dialect
from worker.protocol.execute import ExecuteRequest
from worker.wire.messages import MarkUse, Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One job. Whoever makes it has checked every rule that does not need the tokens."""

    fields: ExecuteRequest
    prompt: Prompt
    """What the model is to read; the fields' own prompt and messages are not looked at again."""
    dialect: Dialect
    """What its client is told of it; this job's own."""
    prompt_logprobs: int | None = None
    """As Submit.prompt_logprobs."""
    prediction: str = ""
    """Submit's."""
    marks: MarkUse = "hidden"
    """Submit's."""
    answer_id: str | None = None
    """The answer that it is a part of, whose id cancels it too; None where it is the whole."""
    model: str | None = None
    """The name that the client has for the model."""
    n_answers: int | None = 1
    """How many answers to its prompt are asked for; None of all of them but the first."""
