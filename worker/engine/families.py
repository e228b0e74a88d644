"""The control tokens with which families of models divide their answers, found in a vocabulary."""

from collections.abc import Collection, Mapping

from worker.engine.channels import ControlTokens, Transition
from worker.wire.jobs import TokenId

FAMILIES: tuple[Mapping[str, Transition], ...] = (
    {  # gpt-oss (harmony)
        "<|channel|>": Transition.NAME,
        "<|message|>": Transition.BODY,
        "<|start|>": Transition.SPEAK,
        **dict.fromkeys(("<|end|>", "<|call|>", "<|return|>"), Transition.ANSWER),
        "<|constrain|>": Transition.STAY,
    },
    {  # Muse
        "<|message|>": Transition.BODY,
        **dict.fromkeys(("<|eom|>", "<|eot|>"), Transition.ANSWER),
        "<|start|>": Transition.SPEAK,
    },
    {"[THINK]": Transition.THINK, "[/THINK]": Transition.ANSWER},  # Magistral, Ministral 3
    {"<|channel>": Transition.NAME_LINE, "<channel|>": Transition.ANSWER},  # Gemma 4
    {  # Command R7B, Command A
        "<|START_THINKING|>": Transition.THINK,
        **dict.fromkeys(("<|END_THINKING|>", "<|START_RESPONSE|>", "<|START_TEXT|>"), Transition.ANSWER),
    },
    {"<think>": Transition.THINK, "</think>": Transition.ANSWER},
    {"<seed:think>": Transition.THINK, "</seed:think>": Transition.ANSWER},
    {"<mm:think>": Transition.THINK, "</mm:think>": Transition.ANSWER},
    {"<|begin_of_thought|>": Transition.THINK, "<|end_of_thought|>": Transition.ANSWER},
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
) -> ControlTokens:
    """Make the marks of a vocabulary. `controls` are its control tokens by their names, `words` the texts that have
    a token of their own by definition. `pair` are the markers around the reasoning, if they are known. `calls` are
    the markers of calls, `enders` those with which a call ends the reasoning.
    """
    tokens = {**(words or {}), **controls}
    families = [*FAMILIES, *([{pair[0]: Transition.THINK, pair[1]: Transition.ANSWER}] if pair is not None else [])]
    turns: dict[TokenId, Transition] = {}
    closers: dict[TokenId, TokenId] = {}
    for family in families:
        if all(name in tokens for name in list(family)[:2]):
            made = {tokens[name]: turn for name, turn in family.items() if name in tokens}
            closer = next(token for token, turn in made.items() if turn is Transition.ANSWER)
            closers = {token: closer for token, turn in made.items() if turn is not Transition.ANSWER} | closers
            turns = made | turns
    begun = [[name for name in tokens if name.strip() and marker.strip().startswith(name)] for marker in enders]
    return ControlTokens(
        {token: name for name, token in controls.items()},
        turns,
        closers,
        frozenset(token for name, token in controls.items() if any(name in marker for marker in calls)),
        frozenset(tokens[max(names, key=len)] for names in begun if names),
    )
