"""The Hugging Face hub through its own client: what a file is, which of a repository's GGUF files is meant.

HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE are the client's to read. The bytes themselves are fetch.py's, because
`hf_hub_download` throws its temporary file away when it fails, and a model of many gigabytes would begin again.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import stamina
from huggingface_hub import (
    HfApi,
    constants,
    get_hf_file_metadata,
    hf_hub_url,
    snapshot_download,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # public, but its module has no __all__

from worker.errors import ModelNotFound
from worker.models.downloads.catalog import HfReference, HfSource, parts

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SAFE_FILE = re.compile(r"([^./\\\x00-\x1f][^/\\\x00-\x1f]*/)*[^./\\\x00-\x1f][^/\\\x00-\x1f]*\.gguf")
_NUMBER_OF_A_PART = re.compile(r"-\d{5}-of-\d{5}$")
_QUANT = re.compile(
    r"(?:^|(?<=[-._ ]))(?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP\d\w*|NVFP\d\w*|BF16|FP?16|FP?32)(?=$|[-._ ])", re.IGNORECASE
)
_NO_MODEL = re.compile(r"(^|[-._])(mmproj|imatrix)([-._]|$)", re.IGNORECASE)
"""A file of numbers for something else: an image projector, a quantiser's statistics of activations."""
_TIMEOUT_S = 10.0
_HUB_ERRORS = (HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, httpx2.HTTPError)


asked_again = stamina.RetryingCaller(attempts=4, wait_initial=0.25, wait_jitter=0.25, timeout=None)
"""Calls a function that asks a server, and calls it again where an error may pass; four times at most."""


class SourceFailed(Exception):
    """A source cannot give the file; another one may. The text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A file on a web server. `headers` carry credentials, which a redirect to another host does not get."""

    url: str
    size_bytes: int | None
    sha256: str | None = None
    """None where the server does not say, as the hub for a file outside its large-file storage."""
    headers: Mapping[str, str] = field(default_factory=dict)


def cached(source: HfSource) -> Path | None:
    """The file in the user's own hub cache (where `hf download` puts it), at the revision that the cache knows. A large
    file's name is its SHA-256.
    """
    try:
        found = try_to_load_from_cache(source.repo, source.file, revision=source.revision)
    except HFValidationError:
        return None  # a name no repository can have; `describe` says so
    return Path(found).resolve() if isinstance(found, str) else None


def sha256_in(name: str) -> str | None:
    """The digest by which the hub names a file of its large-file storage; None for other names."""
    return name if _SHA256.fullmatch(name) else None


def describe(source: HfSource) -> Remote:
    """Ask the hub for the file's digest, size and exact revision. Raises: SourceFailed."""
    try:
        url = hf_hub_url(source.repo, source.file, revision=source.revision)
        metadata = asked_again(_is_passing, get_hf_file_metadata, url, timeout=_TIMEOUT_S)
    except _HUB_ERRORS as error:
        raise SourceFailed(_explained(error, source.repo, source.revision, source.file)) from error
    if metadata.commit_hash is None or metadata.etag is None:
        raise SourceFailed(f"{constants.ENDPOINT} does not answer like a hub: check HF_ENDPOINT and your proxy")
    return Remote(
        url=hf_hub_url(source.repo, source.file, revision=metadata.commit_hash),
        size_bytes=metadata.size,
        sha256=sha256_in(metadata.etag),
        headers=build_hf_headers(),
    )


def gguf_of(reference: HfReference) -> str:
    """The path of the repository's GGUF that is meant; of several parts the first.

    Raises: SourceFailed where the hub cannot be asked, ModelNotFound with the choices where it has none or several.
    """
    try:
        info = asked_again(
            _is_passing, HfApi().model_info, reference.repo, revision=reference.revision, timeout=_TIMEOUT_S
        )
    except _HUB_ERRORS as error:
        raise SourceFailed(_explained(error, reference.repo, reference.revision, "a .gguf")) from error
    files = [sibling.rfilename for sibling in info.siblings or []]
    return the_one_meant(reference, [file for file in files if _SAFE_FILE.fullmatch(file)])


def snapshot(repo: str, revision: str, patterns: Sequence[str]) -> Path:
    """The folder of the user's hub cache with those files of the repository that fit one of `patterns`; fetched as far
    as they are missing. Where the hub cannot be reached, what the cache has is enough if it is whole.

    Raises: SourceFailed, OSError (disk).
    """
    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=list(patterns)))
    except LocalEntryNotFoundError as error:
        # It says to a programmer what to pass; why the hub did not answer is its cause.
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise SourceFailed(_explained(cause, repo, revision, "its checkpoint")) from error
    except _HUB_ERRORS as error:
        raise SourceFailed(_explained(error, repo, revision, "its checkpoint")) from error


def reason(error: Exception) -> str:
    """Return the library's message, or the error's name if it has none; always one line."""
    return " ".join(str(error).split()) or type(error).__name__


def _is_passing(error: Exception) -> bool:
    """Worth another attempt: the connection failed, or the hub itself did."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in (408, 429) or error.response.status_code >= 500
    return isinstance(error, httpx2.TransportError)


def _explained(error: Exception, repo: str, revision: str, file: str) -> str:
    """One line: why the hub did not give the file, and what to do about it."""
    page = f"{constants.ENDPOINT}/{repo}"
    match error:
        case GatedRepoError():
            why = f"{repo} is gated: accept its terms at {page} and set HF_TOKEN to a token of the account that did"
        case RevisionNotFoundError():
            why = f"{repo} has no revision {revision}"
        case RemoteEntryNotFoundError():
            why = f"{repo} has no file {file}: see {page}/tree/{revision}"
        case RepositoryNotFoundError():
            why = f"{repo} does not exist or is private: check its name, or set HF_TOKEN to a token that may read it"
        case HfHubHTTPError() if error.response.status_code in (401, 403):
            why = f"{repo} may not be read: set HF_TOKEN to a token that may read it"
        case HfHubHTTPError():
            why = f"{constants.ENDPOINT} failed for {repo}: try again later"
        case OfflineModeIsEnabled():
            return f"HF_HUB_OFFLINE is set and {file} of {repo} is not in the hub cache"
        case _:
            return f"{constants.ENDPOINT} cannot be asked for {repo}: {reason(error)}; check your network"
    return f"{why} (HTTP {error.response.status_code})"


# ── the file that is meant ───────────────────────────────────────────────────────────────────────


def the_one_meant(reference: HfReference, files: Iterable[str]) -> str:
    """The one model among a repository's GGUF files that the reference means; of several parts the first. Repositories
    have one file for each quantisation, or a folder for each whose files are parts.

    Raises: ModelNotFound with the choices where there is none, or more than one.
    """
    models = sorted(file for file in files if parts(file)[0] == file and not _NO_MODEL.search(_stem(file)))
    place = f"hf:{reference.repo}"
    if not models:
        raise ModelNotFound(f"{place} has no .gguf file at {reference.revision}")
    quants = list(dict.fromkeys(filter(None, map(quant_of, models))))
    if reference.quant is None:
        found, of_quant = models, ""
        shorter = f":QUANT, one of {', '.join(quants)}, or " if quants else ""
    else:
        wanted = reference.quant.upper()
        # The files of exactly this quantisation; if there are none, those with one of the known marks before it.
        exact = [file for file in models if quant_of(file) == wanted]
        found = exact or [file for file in models if quant_of(file).removeprefix("UD-") == wanted]
        of_quant, shorter = f" of the quantisation {reference.quant}", ""
    if not found:
        choices = ", ".join(quants) if quants else f"files only: {', '.join(models)}"
        raise ModelNotFound(f"{place} has no GGUF{of_quant}; it has {choices}")
    if len(found) > 1:
        raise ModelNotFound(
            f"{place} has {len(found)} .gguf files{of_quant}: add {shorter}::file= and one of {', '.join(found)}"
        )
    return found[0]


def quant_of(file: str) -> str:
    """The quantisation in a file's name, else in its folder's, in capitals; empty if neither names one."""
    for name in (_stem(file), *reversed(file.split("/")[:-1])):
        if named := _QUANT.findall(name):
            return str(named[-1]).upper()
    return ""


def _stem(file: str) -> str:
    return _NUMBER_OF_A_PART.sub("", file.rpartition("/")[2].removesuffix(".gguf"))
