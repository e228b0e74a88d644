"""The engine's raw stderr as lines, and the last of it for the report of a crash. Pure."""

from worker.observe.log_lines import escape

LAST_WORDS_BYTES = 4096


class StderrTail:
    """The engine's raw stderr, cut into lines, of which the last 4 KiB are kept. Pure: `feed` takes what the pipe gave.

    Lines are without their end, never empty, with invalid UTF-8 replaced and control characters escaped;
    one longer than 4 KiB is cut there.
    """

    def __init__(self) -> None:
        self._unfinished = b""
        self._tail = b""

    def feed(self, chunk: bytes) -> list[str]:
        """The lines that `chunk` completes."""
        self._tail = (self._tail + chunk)[-LAST_WORDS_BYTES:]
        *complete, rest = (self._unfinished + chunk).split(b"\n")
        *overlong, self._unfinished = _cut(rest)
        return _readable([piece for line in complete for piece in _cut(line)] + overlong)

    @property
    def last_words(self) -> str:
        """The last lines, joined with ` | ` for a one-line report; an unfinished line counts."""
        half_a_character = bytes(range(0x80, 0xC0))
        return " | ".join(_readable(self._tail.lstrip(half_a_character).split(b"\n")))


def _cut(line: bytes) -> list[bytes]:
    return [line[at : at + LAST_WORDS_BYTES] for at in range(0, len(line), LAST_WORDS_BYTES)] or [b""]


def _readable(lines: list[bytes]) -> list[str]:
    return [escape(line.strip().decode(errors="replace")) for line in lines if line.strip()]
