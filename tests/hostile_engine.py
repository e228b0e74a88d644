"""The toy engine, whose answers are what tests/hostile_texts.py has: `python -m tests.hostile_engine FD GENERATION`."""

from itertools import cycle

from msgspec.structs import replace

from tests.engine.fake_runner import FakeRunner
from tests.hostile_texts import TEXTS
from tests.toy_engine import load_with
from worker.engine.backend import Sampled, Step
from worker.process.main import main

ANSWER = "\n\n".join(TEXTS)
PIECE_BYTES = 7


class HostileRunner(FakeRunner):
    """Each job gets the whole text again and again, a few bytes with each token."""

    def run(self, step: Step) -> list[Sampled]:
        return [replace(sampled, piece=next(_pieces)) for sampled in super().run(step)]


def _cut(data: bytes) -> list[bytes]:
    return [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]


_pieces = cycle(_cut(ANSWER.encode()))


if __name__ == "__main__":
    main(load_with(HostileRunner))
