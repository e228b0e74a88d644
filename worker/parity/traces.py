"""Traces of a person or a machine that a proof bundle must not carry: folders, names, secrets.

Owns: what counts as one, and the search. Fails loudly: evidence that was silently changed would be none.
"""

import getpass
import platform
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from worker.config.settings import environment
from worker.errors import WorkerError

_SECRET_NAME = re.compile(r"(token|key|secret|password|passwd|credentials?)$", re.IGNORECASE)
_SHORTEST_SECRET = 8
"""Shorter values are words that stand in any text."""

TRANSCRIPT = "transcript.ndjson"
"""Also `sse_transcript.ndjson`: what was asked and what a model wrote."""

_IN_A_URL = re.compile(r"://[^/\s:@]*:([^/\s@]+)@")
"""As in a proxy's address. In texts such URLs are examples."""

_FORMS = {
    "a bearer token": r"\bbearer\s+[A-Za-z0-9._~+/=-]{16,}",
    "a Hugging Face token": r"\bhf_[A-Za-z0-9]{16,}",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
}


@dataclass(frozen=True, slots=True)
class Trace:
    """`what` is all that an error says: it never repeats what it found."""

    what: str
    pattern: re.Pattern[str]
    is_secret: bool = False


def check_clean(files: Mapping[str, bytes], traces: Sequence[Trace] | None = None) -> None:
    """Look for `traces`, by default this machine's, in the names and texts of files. Images are not searched. In a
    transcript only secrets are looked for: a model may write `/tmp`, and that says nothing of this machine.

    Raises: WorkerError with the file, the line and what kind of trace it is.
    """
    traces = this_machines() if traces is None else traces
    for name, data in files.items():
        if name.endswith(".png"):
            continue
        is_transcript = name.endswith(TRANSCRIPT)
        for n, line in enumerate([name, *data.decode(errors="replace").splitlines()]):
            for trace in traces:
                if (trace.is_secret or not is_transcript) and trace.pattern.search(line):
                    raise WorkerError(
                        f"the proof bundle would hold {trace.what}, in {name}{f' line {n}' if n else ''}: "
                        "nothing was written; name files relative to the working directory"
                    )


def this_machines() -> tuple[Trace, ...]:
    """The traces of whoever runs this."""
    return (*_folders(), *_names(), *_secrets(environment()))


def _folders() -> Iterator[Trace]:
    places = {"the home directory": Path.home, "the working directory": Path.cwd, "the temporary directory": _temporary}
    for what, find in places.items():
        try:
            place = find()
        except (OSError, RuntimeError):  # no home, or a working directory that is gone
            continue
        for folder in {str(place), str(place.resolve())} - {"/"}:
            yield Trace(what, re.compile(rf"(?<![\w.-]){re.escape(folder)}(?![\w.-])"))


def _temporary() -> Path:
    return Path(tempfile.gettempdir())


def _names() -> Iterator[Trace]:
    yield from _name("the host's name", platform.node())
    try:
        yield from _name("the user's name", getpass.getuser())
    except (OSError, KeyError):  # a container without an entry for its user
        return


def _name(what: str, name: str) -> Iterator[Trace]:
    """A name like `max` stands in any text: it counts in paths and addresses only. One like `max-laptop` always."""
    if not name:
        return
    word = re.escape(name)
    if not name.isalpha():
        yield Trace(what, re.compile(rf"(?<![\w-]){word}(?![\w-])"))
    else:
        yield Trace(what, re.compile(rf"(?<=[/\\@~]){word}(?![\w-])|(?<![\w.-]){word}(?=@|:\d)"))


def _secrets(environ: Mapping[str, str]) -> Iterator[Trace]:
    for name, value in environ.items():
        secrets = [value] if _SECRET_NAME.search(name) else _IN_A_URL.findall(value)
        for secret in secrets:
            if len(secret) >= _SHORTEST_SECRET:
                yield Trace(f"a secret of {name}", re.compile(re.escape(secret)), is_secret=True)
    for what, form in _FORMS.items():
        yield Trace(what, re.compile(form, re.IGNORECASE), is_secret=True)
