"""The model that is judged, which references and cases both speak of."""

from dataclasses import dataclass
from pathlib import Path

from worker.errors import UsageError
from worker.host import sha256_of
from worker.models.facts.info import ModelInfo, read_info


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The GGUF that is judged, and with what means."""

    info: ModelInfo
    sha256: str
    n_threads: int
    work: Path
    """A folder for intermediate files, the caller's to remove."""

    @classmethod
    def of(cls, path: Path, *, n_threads: int, work: Path) -> "Subject":
        """Reads the whole file for its digest. Raises: BadModelFile; UsageError for a model in several files."""
        info = read_info(path)
        if len(info.part_paths) > 1:
            raise UsageError(
                f"{path} is one of {len(info.part_paths)} files: merge them with llama-gguf-split --merge, then judge"
                " the one file"
            )
        return cls(info=info, sha256=sha256_of(path), n_threads=n_threads, work=work)
