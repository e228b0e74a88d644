"""Many written answers, read in every cutting: `python -m tests.formats.round_trips [CALLS PER FORMAT] [FORMAT...]`.

Prints how many calls of each format were read, and what reading costs per piece of four characters, about a token. Ends
with 1 at the first difference, and shows it.
"""

import json
import random
import sys
import time
from collections.abc import Iterator, Sequence

from tests.formats.writing import CALLING, FENCES, Answer, markers, says, schema_of, written
from worker.formats.read.parse import Delta, Reader, message_of
from worker.wire.chat_format import CallFormat, ChatFormat

MAX_DEPTH = 3
SIGNS = ('"', "\\", "{", "}", "[", "]", "\n", " ", "'", ",", ":", "<", "</", "ä", "日本", "😀", "null", "12", "word ")


class Writer:
    """Draws answers by chance."""

    def __init__(self, form: ChatFormat, seed: int) -> None:
        self.form = form
        self.chance = random.Random(seed)
        whole = [*markers(form), *FENCES]
        self.pieces = [*whole, *(one[: len(one) // 2] for one in whole), *SIGNS, *SIGNS]

    def text(self) -> str:
        return "".join(self.chance.choices(self.pieces, k=self.chance.randrange(8)))

    def plain(self) -> str:
        """Return a text without a marker, without white space at its ends."""
        while True:
            text = "".join(self.chance.choices(SIGNS, k=self.chance.randrange(12))).strip()
            behind_prompt = self.form.opening[1:] + text
            if not text.startswith(("{", "[")) and not any(
                one in behind_prompt for one in (*markers(self.form), *FENCES)
            ):
                return text

    def value(self, calls: CallFormat, depth: int = 0) -> object:
        is_nested = calls.form == "nested"  # which has no empty object, no list of lists, and no null
        kind = self.chance.randrange(6 if depth == MAX_DEPTH else 8)
        match kind:
            case 0 | 1 | 2:
                return self.says(calls)
            case 3:
                return self.chance.choice([0, -7, 10**12, 1.5, -2.5e-7])
            case 4:
                return self.chance.random() < 0.5
            case 5:
                return 1 if is_nested else None
            case 6 if not is_nested:
                return [self.value(calls, depth + 1) for _ in range(self.chance.randrange(3))]
            case _:
                keys = range(self.chance.randrange(1 if is_nested else 0, 3))
                return {self.key() if is_nested else self.says(calls): self.value(calls, depth + 1) for _ in keys}

    def says(self, calls: CallFormat) -> str:
        while not says(calls, text := self.text()):
            pass
        return text

    def key(self) -> str:
        return "".join(self.chance.choices("abcdefgh_", k=self.chance.randrange(1, 6)))

    def answer(self) -> Answer:
        calls = self.form.calls
        assert calls is not None
        answered = [
            (f"{self.key()}{index}", {self.key(): self.value(calls) for _ in range(self.chance.randrange(4))})
            for index in range(self.chance.randrange(1, 4))
        ]
        return Answer(
            content="" if self.form.name == "llama-3" else self.plain(),
            thought=self.plain() if self.form.reasoning is not None else "",
            calls=answered,
            tools={name: schema_of(given) for name, given in answered},
        )

    def cuttings(self, text: str) -> Iterator[list[str]]:
        yield [text]
        for size in (1, 2, 4):
            yield [text[i : i + size] for i in range(0, len(text), size)]
        for n_places in (1, 2, 9):
            places = sorted(self.chance.choices(range(len(text) + 1), k=n_places))
            yield [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def read(form: ChatFormat, answer: Answer, pieces: Sequence[str]) -> list[Delta]:
    reader = Reader(form, answer.tools, new_id=str)
    return [delta for piece in pieces for delta in reader.push(piece)] + reader.finish()


def run(name: str, n_calls: int) -> int:
    """Return the number of readings in which a format's calls were all read as they were written."""
    form, n_done, n_read, n_pieces, seconds = CALLING[name], 0, 0, 0, 0.0
    writer = Writer(form, seed=39)
    while n_done < n_calls:
        answer = writer.answer()
        text = written(form, answer)
        expected = (answer.content, answer.thought, [(tool, given) for tool, given in answer.calls])
        for pieces in writer.cuttings(text):
            begun = time.thread_time()
            deltas = read(form, answer, pieces)
            if len(pieces[0]) == 4:
                seconds += time.thread_time() - begun
                n_pieces += len(pieces)
            message = message_of(deltas)
            found = (
                message.content,
                message.reasoning,
                [(one.name, json.loads(one.arguments)) for one in message.calls],
            )
            if found != expected:
                raise SystemExit(f"{name}: {pieces!r}\n read {found!r}\n not {expected!r}")
            n_read += len(answer.calls)
        n_done += len(answer.calls)
    cost = 1e6 * seconds / n_pieces
    sys.stdout.write(f"{name:20} {n_done:7,} calls, read {n_read:9,} times; {cost:5.1f} µs a piece\n")
    sys.stdout.flush()
    return n_read


def main(arguments: Sequence[str]) -> None:
    n_calls = int(arguments[0]) if arguments else 10_000
    total = sum(run(name, n_calls) for name in arguments[1:] or CALLING)
    n_formats = len(arguments[1:] or CALLING)
    sys.stdout.write(f"{n_formats} formats, {total:,} readings of calls without a difference\n")


if __name__ == "__main__":
    main(sys.argv[1:])
