"""Grammars asked about byte by byte: the tiny model has a token for each, so that any text can be tried."""

from tests.llama.tiny import END
from worker.engine.contract import JobKey, Sampling, Submit, TokenId
from worker.llama.grammar import Grammar, Grammars


def submit(grammar: str | None = None, json_schema: str | None = None) -> Submit:
    sampling = Sampling(seed=0)
    return Submit(job=JobKey(1), prompt="", max_tokens=9, sampling=sampling, grammar=grammar, json_schema=json_schema)


def constrain(grammars: Grammars, grammar: str) -> Grammar:
    constraint = grammars.constrain(submit(grammar))
    assert isinstance(constraint, Grammar), constraint
    return constraint


def byte(value: int) -> TokenId:
    return TokenId(3 + value)


def is_text(grammar: Grammar, text: str) -> bool:
    """Whether the grammar takes the text as a whole; the grammar is closed then."""
    try:
        for value in text.encode():
            if not grammar.allows(byte(value)):
                return False
            grammar.accept(byte(value))
        return grammar.allows(END)
    finally:
        grammar.close()
