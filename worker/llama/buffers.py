"""The facts in llama.cpp's own log while it loads: buffer sizes, layers offloaded, the last error.

Owns the reading of those lines, whose words are in models/upstream/wording.py: the C API has no other way to ask. No
ctypes here. Fed on whatever thread loads.
"""

from dataclasses import dataclass, field
from typing import Literal

from worker.models.plan.buffers import Buffer, BufferSizes
from worker.models.upstream.wording import ALLOCATION_FAILED, BUFFER, NO_REASON, OFFLOADED, WITHOUT_FLASH

Level = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class LogLine:
    """One whole line of the library's, without its newline."""

    level: Level
    text: str


@dataclass(slots=True)
class Watch:
    """The log between the begin and the end of one call."""

    _buffers: list[Buffer] = field(default_factory=list)
    last_error: str | None = None
    needed_bytes: int | None = None
    """Size of the allocation that failed, if one did."""
    is_without_flash: bool = False
    """True if flash attention is not used, although the caller did not turn it off."""
    n_offloaded: int = 0
    n_layers: int = 0
    """The number of layers of the model, the output layer included; 0 if the build has no GPU backend and says
    nothing."""

    @property
    def sizes(self) -> BufferSizes:
        return BufferSizes(tuple(self._buffers))

    def take(self, line: LogLine) -> None:
        if line.level == "error" and not line.text.endswith(NO_REASON):
            self.last_error = line.text
        if match := BUFFER.match(line.text):
            size_bytes = round(float(match["mib"]) * 2**20)
            self._buffers.append(Buffer(match["name"], match["kind"], size_bytes))
        elif match := OFFLOADED.search(line.text):
            self.n_offloaded, self.n_layers = int(match[1]), int(match[2])
        elif match := ALLOCATION_FAILED.search(line.text):
            self.needed_bytes = int(match[1])
        elif WITHOUT_FLASH.search(line.text):
            self.is_without_flash = True
