"""The report of `make images-test`: the images, then every claim with the observation. It is Markdown, so that it can
be stored."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tools.images.building import Built
from tools.images.contents import MB
from tools.images.outcome import Outcome
from tools.markdown import Cells, table

IMAGE_COLUMNS = ("image", ">built in", ">bytes", ">of the base", ">ours", "layers")
CLAIM_COLUMNS = ("of", "claim", "verdict", "seen")


@dataclass(frozen=True, slots=True)
class Report:
    images: tuple[Built, ...]
    outcomes: tuple[tuple[str, Outcome], ...]
    """The checks and their outcomes, in order."""
    named: frozenset[str] = frozenset()
    """The names of images without which the run says nothing."""

    @property
    def has_failed(self) -> bool:
        """True if a claim fails, a named image was not built, or no image was built."""
        built = {each.image.name for each in self.images}
        return any(outcome.verdict == "FAILS" for _, outcome in self.outcomes) or not built or not built >= self.named


def page(report: Report) -> str:
    """Ends with a line break."""
    blocks = [
        table(IMAGE_COLUMNS, map(_image_cells, report.images)),
        table(CLAIM_COLUMNS, _claim_cells(report.outcomes)),
        _summary(report.outcomes),
    ]
    return "\n\n".join(blocks) + "\n"


def _image_cells(built: Built) -> Cells:
    layers = " + ".join(_mb(size) for size in built.layers)
    sizes = (built.size_bytes, built.base_bytes, built.own_bytes)
    return (built.image.tag, f"{built.build_s:.0f} s", *(f"{_mb(size)} MB" for size in sizes), layers)


def _claim_cells(outcomes: Iterable[tuple[str, Outcome]]) -> Iterator[Cells]:
    for of, outcome in outcomes:
        yield (of, outcome.claim, outcome.verdict, " ".join(outcome.detail.split()))


def _summary(outcomes: Iterable[tuple[str, Outcome]]) -> str:
    verdicts = [outcome.verdict for _, outcome in outcomes]
    return ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in ("holds", "FAILS", "skipped"))


def _mb(n_bytes: int) -> str:
    return f"{n_bytes / MB:.1f}"
