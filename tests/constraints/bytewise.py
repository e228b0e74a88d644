"""Constraints asked about byte by byte: the tiny model has a token for each, so that any text can be tried."""

from tests.llama.tiny import END
from worker.constraints.constraint import Constraint
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
) -> Constraint:
    found = constraints.constrain(submit(grammar=grammar, json_schema=json_schema, regex=regex))
    assert isinstance(found, Constraint), found
    return found


def byte(value: int) -> TokenId:
    return TokenId(3 + value)


def is_text(constraint: Constraint, text: str) -> bool:
    """True if the constraint takes the text as a whole; it is closed then."""
    try:
        for value in text.encode():
            # The mask would not do: it has only the tokenizer's own spelling of a forced byte.
            if not constraint.n_allowed([byte(value)]):
                return False
            constraint.accept(byte(value))
        return bool(constraint.allowed()[END])
    finally:
        constraint.close()
