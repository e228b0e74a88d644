"""Requests of traces that list the tokens of their answers: with log-probabilities, wherever a route has them.

Owns what a request under the near law asks for. Pure: the request alone decides.
"""

from random import Random

from tools.fire.asks import CHAT, COMPLETIONS, EXECUTE, SAMPLING_FIELDS, Ask, Json
from tools.fire.models import END_TOKENS, HIDDEN_TOKENS, MARK_TOKENS

N_TOP = 20
"""The most that a request may ask for."""
N_DRAWN = 16
"""Those that a plain request may draw from. They are listed, so that the draw can be repeated; the others are near
enough that rounding may bring them in.
"""
BAN = -100.0
_PLAIN_SHARE = 0.7
_OF_ENDS = ("min_tokens", "ignore_eos", "stop_token_ids")


def listing(ask: Ask) -> Ask:
    """The request as the near law needs it: its answer lists each token with its most probable neighbours.

    Most requests lose their sampling fields, so that a token depends on nothing but the listed numbers and the
    seed. Tokens without text are banned where a route would not list them, or has no names for them.
    `/v1/responses`, `/v1/messages` and chats with tools list none.
    """
    if not has_list(ask):
        return ask
    body = {name: value for name, value in ask.body.items() if name != "echo"}
    is_plain = Random(ask.digest).random() < _PLAIN_SHARE  # noqa: S311 - chance that can be repeated, not a secret
    if is_plain:
        body = _plain(body)
    if ask.path == COMPLETIONS:
        return Ask(ask.path, body | {"logprobs": N_TOP, "return_tokens_as_token_ids": True})
    hidden = HIDDEN_TOKENS if ask.path == EXECUTE else HIDDEN_TOKENS | MARK_TOKENS
    if ask.path == CHAT and is_plain and body.get("temperature", 1.0):
        hidden |= END_TOKENS
    body["logit_bias"] = body.get("logit_bias", {}) | {str(token): BAN for token in hidden}
    return Ask(ask.path, body | ({"logprobs": N_TOP} if ask.path == EXECUTE else _OF_CHATS))


def has_list(ask: Ask) -> bool:
    """True if the route can list all tokens of this answer."""
    return ask.path in (EXECUTE, COMPLETIONS) or (ask.path == CHAT and "tools" not in ask.body)


_OF_CHATS: Json = {"logprobs": True, "top_logprobs": N_TOP}


def _plain(body: Json) -> Json:
    body = {name: value for name, value in body.items() if name not in SAMPLING_FIELDS}
    if body.get("temperature", 1.0):
        body = {name: value for name, value in body.items() if name not in _OF_ENDS} | {"top_k": N_DRAWN}
    return body
