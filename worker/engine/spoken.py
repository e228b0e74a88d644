"""The text of an answer with a reasoning, in which no stop is looked for.

Owns the place of the reasoning in the text: the tokens that divide it say so (channels.py), or its markers are text,
which no token divides. Pure; runs on the step thread.
"""

from collections.abc import Sequence as Seq

from worker.engine.text import TextStream, n_begun


class ThoughtfulStream(TextStream):
    """A TextStream that finds no stop in the reasoning, in its markers, and in white space behind it, which belongs to
    its marker."""

    def __init__(self, stops: Seq[str], markers: tuple[str, str] | None = None, *, is_thought: bool = False) -> None:
        """`markers` stand around the reasoning if they are text; what may become one waits. `is_thought` says that
        the text begins in the reasoning."""
        super().__init__(stops)
        self._markers = markers and (markers[0].strip(), markers[1].strip())
        self._waiting = ""
        self._is_quiet = is_thought
        self._skips_space = False

    def hush(self, *, is_quiet: bool) -> None:
        """Say whether the text from here on is a reasoning."""
        self._skips_space = self._skips_space or (self._is_quiet and not is_quiet)
        self._is_quiet = is_quiet

    def flush(self) -> str:
        waiting, self._waiting = "" if self.matched is not None else self._waiting, ""
        return self._heard(waiting) + super().flush()

    def _looked_at(self, text: str) -> str:
        if self._markers is None:
            return self._heard(text)
        self._waiting += text
        shown = ""
        while True:
            marker = self._markers[self._is_quiet]
            before, found, rest = self._waiting.partition(marker)
            edge = len(before) - (0 if found else n_begun(before, marker))
            self._waiting = before[edge:] + rest
            shown += self._heard(before[:edge])
            if not found or self.matched is not None:
                break
            shown, self._held = shown + self._held + found, ""
            self.hush(is_quiet=not self._is_quiet)
        return shown

    def _heard(self, text: str) -> str:
        if self._is_quiet:
            return text
        n_space = len(text) - len(text.lstrip()) if self._skips_space else 0
        self._skips_space = self._skips_space and n_space == len(text)
        return text[:n_space] + super()._looked_at(text[n_space:])
