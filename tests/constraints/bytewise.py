"""Constraints asked about byte by byte: the tiny model has a token for each, so that any text can be tried."""

from tests.llama.tiny import END
from worker.constraints.answer import AnswerConstraint
from worker.constraints.constraint import Mask
from worker.constraints.jobs import Constraints
from worker.wire.jobs import JobKey, SamplingParams, SchemaText, Submit, TokenId


def submit(*, grammar: str | None = None, json_schema: str | None = None, regex: str | None = None) -> Submit:
    schema = None if json_schema is None else SchemaText(json_schema)
    return Submit(
        job=JobKey(1),
        prompt="",
        sampling=SamplingParams(seed=0, max_tokens=9, grammar=grammar, json_schema=schema, regex=regex),
    )


def constrain(
    constraints: Constraints, *, grammar: str | None = None, json_schema: str | None = None, regex: str | None = None
) -> AnswerConstraint:
    found = constraints.constrain(submit(grammar=grammar, json_schema=json_schema, regex=regex))
    assert isinstance(found, AnswerConstraint), found
    return found


def byte(value: int) -> TokenId:
    return TokenId(3 + value)


def is_text(constraint: AnswerConstraint, text: str) -> bool:
    """True if the constraint takes the text as a whole; it is closed then."""
    try:
        for value in text.encode():
            # The mask would not do: it has only the tokenizer's own spelling of a forced byte.
            if not constraint.n_allowed([byte(value)]):
                return False
            constraint.accept(byte(value))
        return bool(mask_of(constraint)[END])
    finally:
        constraint.close()


def mask_of(constraint: AnswerConstraint) -> Mask:
    """The tokens that it allows; it must be one that masks."""
    mask = constraint.allowed()
    assert mask is not None
    return mask
