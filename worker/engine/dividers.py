"""The tokens that divide an answer, by family of models.

Owns these families, and the marks that one vocabulary has of them. Pure; it runs when a model is loaded.
"""

from collections.abc import Collection, Mapping

from worker.engine.channels import Marks, Turn
from worker.wire.jobs import TokenId

FAMILIES: tuple[Mapping[str, Turn], ...] = (
    # gpt-oss (harmony).
    {
        "<|channel|>": Turn.NAME,
        "<|message|>": Turn.BODY,
        "<|start|>": Turn.SPEAK,
        "<|end|>": Turn.ANSWER,
        "<|call|>": Turn.ANSWER,
        "<|return|>": Turn.ANSWER,
        "<|constrain|>": Turn.STAY,
    },
    {"<|message|>": Turn.BODY, "<|eom|>": Turn.ANSWER, "<|start|>": Turn.SPEAK, "<|eot|>": Turn.ANSWER},  # Muse
    {"[THINK]": Turn.THINK, "[/THINK]": Turn.ANSWER},  # Magistral, Ministral 3
    {"<|channel>": Turn.NAME_LINE, "<channel|>": Turn.ANSWER},  # Gemma 4
    {  # Command R7B, Command A
        "<|START_THINKING|>": Turn.THINK,
        "<|END_THINKING|>": Turn.ANSWER,
        "<|START_RESPONSE|>": Turn.ANSWER,
        "<|START_TEXT|>": Turn.ANSWER,
    },
    {"<think>": Turn.THINK, "</think>": Turn.ANSWER},
    {"<seed:think>": Turn.THINK, "</seed:think>": Turn.ANSWER},
    {"<mm:think>": Turn.THINK, "</mm:think>": Turn.ANSWER},
    {"<|begin_of_thought|>": Turn.THINK, "<|end_of_thought|>": Turn.ANSWER},
)
"""The tokens that divide an answer, by their names. A family counts if the vocabulary has its first two as control
tokens or as words of its own; names that are spelled by several tokens, or by ordinary ones, are text, and are shown.
"""


def marks_among(
    controls: Mapping[str, TokenId],
    words: Mapping[str, TokenId] | None = None,
    pair: tuple[str, str] | None = None,
    calls: Collection[str] = (),
    enders: Collection[str] = (),
) -> Marks:
    """Make the marks of a vocabulary. `controls` are its control tokens by their names, `words` the texts that have
    a token of their own by definition. `pair` are the markers around the reasoning, if they are known. `calls` are
    the markers of calls, `enders` those with which a call ends the reasoning.
    """
    tokens = {**(words or {}), **controls}
    families = [*FAMILIES, *([{pair[0]: Turn.THINK, pair[1]: Turn.ANSWER}] if pair is not None else [])]
    turns: dict[TokenId, Turn] = {}
    closers: dict[TokenId, TokenId] = {}
    for family in families:
        if all(name in tokens for name in list(family)[:2]):
            made = {tokens[name]: turn for name, turn in family.items() if name in tokens}
            closer = next(token for token, turn in made.items() if turn is Turn.ANSWER)
            closers = {token: closer for token, turn in made.items() if turn is not Turn.ANSWER} | closers
            turns = made | turns
    return Marks(
        {token: name for name, token in controls.items()},
        turns,
        closers,
        frozenset(token for name, token in controls.items() if any(name in marker for marker in calls)),
        frozenset(
            tokens[max(names, key=len)]
            for marker in enders
            if (names := [name for name in tokens if name.strip() and marker.strip().startswith(name)])
        ),
    )
