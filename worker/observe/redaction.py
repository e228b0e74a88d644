"""The masking of secrets in log lines. Secrets are recognised by key and by form. Pure."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

MASK: Final = "[REDACTED]"

SHORTEST_INSIDE_A_TEXT: Final = 6
"""The length that a known secret must have to be looked for inside texts. A shorter one, such as "a", would mask half
of every line and show by that what it is; it is masked if it is a whole value."""

SECRET_KEY = re.compile(
    r"(^|[_-])((api|access|private)[_-]?key|token|secret|password|passwd|authorization|cookie|credentials?)$", re.I
)

_NAMED_SECRET = r"(?<![a-z0-9])(?:api[_-]?key|token|secret|password|passwd|authorization)"  # noqa: S105 - a pattern
_ASSIGNED = r"[\"']?\s*[=:]\s*[\"']?(?:(?:basic|bearer)\s+)?"

_PASSWORD = re.compile(r"://[^/\s@]+@")

_SECRETS_IN_TEXT = (
    (re.compile(rf"({_NAMED_SECRET}{_ASSIGNED})[^\s\"'&,;]+", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(r"\b(bearer\s+)(?!\[REDACTED)[^\s\"',]+", re.IGNORECASE), rf"\1{MASK}"),
    (_PASSWORD, f"://{MASK}@"),
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}"), MASK),
)
"""name=value and name: value, bearer tokens, user:password of a URL, and Hugging Face tokens; nothing else."""

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]


def shows_secret(arguments: Iterable[str]) -> bool:
    """Return whether a secret is among the arguments of a command, which other users can read."""
    return any(
        (word.startswith("--") and SECRET_KEY.search(word.partition("=")[0])) or _PASSWORD.search(word)
        for word in arguments
    )


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables whose names do not say that they hold a secret."""
    return {name: value for name, value in environment.items() if not SECRET_KEY.search(name)}


class Secrets:
    """The secrets to mask: values that look like secrets, and those that are `known` to be secret, whatever they look
    like.
    """

    def __init__(self, *known: str | None) -> None:
        self._known = [secret for secret in known if secret]

    def redact(self, key: str, value: object) -> Plain:
        """`value` as JSON can carry it, masked where `key`, a key inside it or its text says "secret".

        Numbers stay even under a secret's name: a token may be a number of the vocabulary.
        """
        if value is None or isinstance(value, bool | int | float):
            return value
        if SECRET_KEY.search(key):
            return MASK
        if isinstance(value, dict):
            return {self.redact_text(str(name)): self.redact(str(name), inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.redact(key, inner) for inner in value]
        return self.redact_text(str(value))

    def redact_text(self, text: str) -> str:
        text = self.mask_known(text)
        for pattern, replacement in _SECRETS_IN_TEXT:
            text = pattern.sub(replacement, text)
        # Lone surrogates, as in a file name that is not UTF-8, cannot be encoded.
        return text.encode(errors="backslashreplace").decode()

    def mask_known(self, text: str) -> str:
        """Mask the known secrets. Call this before a text is cut: half a secret would not be recognised."""
        for secret in self._known:
            if text == secret:
                return MASK
            if len(secret) >= SHORTEST_INSIDE_A_TEXT:
                text = text.replace(secret, MASK)
        return text


NO_SECRETS: Final = Secrets()
