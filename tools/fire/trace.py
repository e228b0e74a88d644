"""A trace: which requests a worker gets, when, and what becomes of each on the client's side; drawn from a seed.

Pure but for `saved` and `read`.
"""

from pathlib import Path
from random import Random

import msgspec

from tools.fire.asks import TABLE, Ask, Asks
from tools.fire.models import N_CTX, NAMES, Name

Flags = tuple[str, ...]

N_LIVES = 2
_BURST = (1, 2, 4, 8, 16, 40)


class Cut(msgspec.Struct, frozen=True, tag="cut"):
    """The client leaves when this many pieces of the answer are there; with 0 as soon as it has asked."""

    n_pieces: int


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """The client cancels when this many pieces of the answer are there, and reads to the end."""

    n_pieces: int


class Pause(msgspec.Struct, frozen=True, tag="pause"):
    """The client reads nothing for a while when this many pieces are there, and then to the end."""

    n_pieces: int
    ms: int


Fate = Cut | Cancel | Pause | None


class Act(msgspec.Struct, frozen=True):
    """A request is sent."""

    at_ms: int
    ask: int
    """The place of the request in the trace."""
    fate: Fate = None
    """None: the client reads to the end."""


class Life(msgspec.Struct, frozen=True):
    """The events from a worker's start to its end."""

    acts: tuple[Act, ...]
    kills_ms: tuple[int, ...] = ()
    """The engine is killed."""


class Trace(msgspec.Struct, frozen=True):
    """Everything that is needed to repeat a run."""

    seed: int
    model: Name
    flags: Flags
    has_cache_dir: bool
    """All lives have one cache directory."""
    has_draft_model: bool
    lives: tuple[Life, ...]
    asks: tuple[Ask, ...]

    @property
    def n_requests(self) -> int:
        return sum(len(life.acts) for life in self.lives)

    @property
    def used(self) -> list[Ask]:
        """The requests that are sent, each once, whatever its salts."""
        places = {act.ask for life in self.lives for act in life.acts}
        return [*{self.asks[place].digest: self.asks[place] for place in sorted(places)}.values()]


def draw(seed: int, *, n_requests: int = 250, models: tuple[Name, ...] = NAMES) -> Trace:
    """The trace of that seed: two lives of a worker, with `n_requests` in all."""
    rng = Random(seed)  # noqa: S311 - chance that can be repeated, not a secret
    asks = Asks(rng)
    places: dict[bytes, int] = {}
    drawn: list[Ask] = []
    lives = []
    for number in range(N_LIVES):
        acts = []
        for at_ms in _arrivals(rng, (n_requests + number) // N_LIVES):
            ask = asks.draw()
            sent = msgspec.json.encode(ask)
            if sent not in places:
                places[sent] = len(drawn)
                drawn.append(ask)
            acts.append(Act(at_ms, places[sent], _fate(rng)))
        end_ms = acts[-1].at_ms if acts else 0
        kills = tuple(sorted(rng.randint(1, end_ms + 100) for _ in range(rng.choice([0, 0, 0, 1, 2]))))
        lives.append(Life(tuple(acts), kills))
    model = models[seed % len(models)]
    return Trace(
        seed=seed,
        model=model,
        flags=_flags(rng, model),
        has_cache_dir=rng.random() < 0.5,
        has_draft_model=rng.random() < 0.25 and model != "hybrid",
        lives=tuple(lives),
        asks=tuple(drawn),
    )


def saved(trace: Trace, path: Path) -> Path:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(trace)))
    return path


def read(path: Path) -> Trace:
    return msgspec.json.decode(path.read_bytes(), type=Trace)


def _arrivals(rng: Random, n: int) -> list[int]:
    """Bursts with pauses between them."""
    arrivals: list[int] = []
    at_ms = 0
    while len(arrivals) < n:
        spread_ms = rng.choice([0, 0, 5, 60])
        arrivals += [at_ms + rng.randint(0, spread_ms) for _ in range(rng.choice(_BURST))]
        at_ms += rng.choice([5, 20, 100, 250])
    return sorted(arrivals[:n])


def _fate(rng: Random) -> Fate:
    n_pieces = rng.choice([0, 1, 2, 3, 5, 8, 13])
    roll = rng.random()
    if roll < 0.08:
        return Cut(n_pieces)
    if roll < 0.14:
        return Cancel(n_pieces)
    return Pause(n_pieces, rng.choice([50, 300, 900])) if roll < 0.2 else None


def _flags(rng: Random, model: Name) -> Flags:
    """Few cells and few slots, so that jobs wait, are paused, and lose their cached cells.

    At a hybrid model answers are equal for one job at a time only, and the worker takes no other number. The default
    model was trained on more than the fewest cells; with more of them a job could use more.
    """
    picked = {name: rng.choice(values) for name, values in TABLE["flags"].items()}
    if model == "hybrid":
        picked["--parallel"] = "1"
    if model == "default":
        picked["--ctx-size"] = str(N_CTX)
    picked["--ubatch-size"] = str(min(int(picked["--ubatch-size"]), int(picked["--batch-size"])))
    return tuple(word for pair in picked.items() for word in pair)
