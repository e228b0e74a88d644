"""Salted prompts: prompts of clients that share no cached work with clients of another salt.

This module owns the first token of such a prompt. It differs from the same token without the salt or with another one,
so no comparison of two texts from their beginnings, however it is made, finds anything that they have in common. It
knows nothing of caches. What packs tokens into bytes loses the salt, and asks `salt_of` first.
"""

from collections.abc import Sequence as Seq

from worker.wire.jobs import TokenId


class _SaltedToken(int):
    """A token's id, and a salt. It is written and computed as the id alone."""

    salt: bytes

    def __new__(cls, token: TokenId, salt: bytes) -> "_SaltedToken":
        made = super().__new__(cls, token)
        made.salt = salt
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SaltedToken) and self.salt == other.salt and int(self) == int(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__


def salted(prompt: list[TokenId], salt: bytes) -> list[TokenId]:
    """Return a prompt, which is not empty, that shares nothing with prompts of another salt; without one as it is."""
    return [TokenId(_SaltedToken(prompt[0], salt)), *prompt[1:]] if salt else prompt


def salt_of(tokens: Seq[TokenId]) -> bytes:
    """Return the salt of a text from its beginning on; nothing if it has none."""
    return tokens[0].salt if tokens and isinstance(tokens[0], _SaltedToken) else b""
