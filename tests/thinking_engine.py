"""The toy engine, whose model thinks before it answers, as gpt-oss does: `python -m tests.thinking_engine FD NUMBER`.

Every job draws SCRIPT, token by token; control tokens have no text, as in the library.
"""

from collections.abc import Callable
from dataclasses import replace as replaced

from msgspec.structs import replace

from tests.engine.fake_runner import FakeRunner
from tests.toy_engine import load_with
from worker.engine.backend import LoadedModel, Sampled, Step
from worker.engine.channels import Marks
from worker.process.main import main
from worker.wire.messages import Configure, TokenId

MARKS = Marks.of(
    {name: TokenId(40 + at) for at, name in enumerate(("<|channel|>", "<|message|>", "<|start|>", "<|end|>"))}
)
_IDS = {name: token for token, name in MARKS.names.items()}
_END = TokenId(63)
SAID: tuple[str, ...] = ("<|channel|>", "analysis", "<|message|>", "The user", " greets.", "<|end|>")
SAID += ("<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "Hel", "lo!")
SCRIPT = [*((_IDS.get(said, TokenId(3)), b"" if said in _IDS else said.encode()) for said in SAID), (_END, b"")]


class ThinkingRunner(FakeRunner):
    def run(self, step: Step) -> list[Sampled]:
        n_said = {slice_.slot: len(slice_.generated) for slice_ in step.slices}
        # No draft is ever right: only the first draw of a slot counts.
        first = {sampled.slot: sampled for sampled in reversed(super().run(step))}
        return [
            self._scripted(first[slice_.slot], n_said[slice_.slot]) for slice_ in step.slices if slice_.slot in first
        ]

    @staticmethod
    def _scripted(sampled: Sampled, n_said: int) -> Sampled:
        token, piece = SCRIPT[min(n_said, len(SCRIPT) - 1)]
        return replace(sampled, token=token, piece=piece, is_end=token == _END)


def load(config: Configure, on_progress: Callable[[int], None]) -> LoadedModel:
    return replaced(load_with(ThinkingRunner)(config, on_progress), marks=MARKS)


if __name__ == "__main__":
    main(load)
