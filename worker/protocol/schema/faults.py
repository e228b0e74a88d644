"""What is found wrong with a schema, and how its parts are named and counted. Pure; runs on the front's event loop."""

from dataclasses import dataclass

MAX_REPEATS = 1000
"""Of a length, a number of items, a pattern. llama.cpp takes 2,000 rules in a repetition, an optional one needs two."""
MAX_REPEATS_IN_ALL = 10_000

_MAX_SHOWN = 100

Tokens = tuple[str, ...]
"""A JSON pointer in its parts, unescaped; () is the whole schema."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with the part at `pointer`, and by which rule."""

    pointer: str
    constraint: str
    what: str


class Faults:
    """Those of one schema, in the order they were met, none twice."""

    def __init__(self) -> None:
        self._found: dict[Fault, None] = {}
        self._n_repeats = 0

    @property
    def found(self) -> list[Fault]:
        return list(self._found)

    def unsupported(self, at: Tokens, what: str) -> None:
        """The converter would not honour it."""
        self.add(at, "supported", what)

    def invalid(self, at: Tokens, what: str) -> None:
        """It means nothing in a JSON schema."""
        self.add(at, "valid", what)

    def unsatisfiable(self, at: Tokens, what: str) -> None:
        """No value would fit."""
        self.add(at, "satisfiable", what)

    def add(self, at: Tokens, constraint: str, what: str) -> None:
        pointer = "#" + "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in at)
        shown = pointer if len(pointer) <= _MAX_SHOWN else pointer[:_MAX_SHOWN] + "…"
        self._found[Fault(shown, constraint, what)] = None

    def count(self, n_repeats: int, at: Tokens) -> None:
        """Repetitions are written out in the grammar: there is a limit for a part and one for all together."""
        if n_repeats > MAX_REPEATS:
            self.add(at, f"max_repeats({MAX_REPEATS})", f"must not repeat more than {MAX_REPEATS} times in all")
        elif self._n_repeats <= MAX_REPEATS_IN_ALL < self._n_repeats + n_repeats:
            what = f"brings the lengths and repetitions of all parts above {MAX_REPEATS_IN_ALL}; allow fewer"
            self.add(at, f"max_repeats({MAX_REPEATS_IN_ALL})", what)
        self._n_repeats += n_repeats
