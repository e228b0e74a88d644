"""The choice of a hub repository's GGUF file, by the quantisation in the files' names. Pure.

Repositories have one file for each quantisation, or a folder for each whose files are parts. Beside them lie files that
are no model of their own, such as an image projector.
"""

import re
from collections.abc import Iterable

from worker.downloads.catalog import HfReference, parts
from worker.errors import ModelNotFound

_NUMBER_OF_A_PART = re.compile(r"-\d{5}-of-\d{5}$")
_QUANT = re.compile(
    r"(?:^|(?<=[-._ ]))(?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP\d\w*|NVFP\d\w*|BF16|FP?16|FP?32)(?=$|[-._ ])", re.IGNORECASE
)
_NO_MODEL = re.compile(r"(^|[-._])(mmproj|imatrix)([-._]|$)", re.IGNORECASE)
"""A file of numbers for something else: an image projector, a quantiser's statistics of activations."""


def the_one_meant(reference: HfReference, files: Iterable[str]) -> str:
    """The one model among a repository's GGUF files that the reference means; of several parts the first.

    Raises: ModelNotFound with the choices where there is none, or more than one.
    """
    models = sorted(file for file in files if parts(file)[0] == file and not _NO_MODEL.search(_stem(file)))
    place = f"hf:{reference.repo}"
    if not models:
        raise ModelNotFound(f"{place} has no .gguf file at {reference.revision}")
    found = _of_quant(reference.quant, models) if reference.quant is not None else models
    if len(found) == 1:
        return found[0]
    quants = list(dict.fromkeys(filter(None, map(quant_of, models))))
    if reference.quant is not None and not found:
        choices = ", ".join(quants) if quants else f"files only: {', '.join(models)}"
        raise ModelNotFound(f"{place} has no GGUF of the quantisation {reference.quant}; it has {choices}")
    of_quant = f" of the quantisation {reference.quant}" if reference.quant is not None else ""
    shorter = f":QUANT, one of {', '.join(quants)}, or " if quants and reference.quant is None else ""
    raise ModelNotFound(
        f"{place} has {len(found)} .gguf files{of_quant}: add {shorter}::file= and one of {', '.join(found)}"
    )


def quant_of(file: str) -> str:
    """The quantisation in a file's name, else in its folder's, in capitals; empty if neither names one."""
    for name in (_stem(file), *reversed(file.split("/")[:-1])):
        if named := _QUANT.findall(name):
            return str(named[-1]).upper()
    return ""


def _of_quant(quant: str, files: list[str]) -> list[str]:
    """The files of exactly this quantisation; if there are none, those with one of the known marks before it."""
    wanted = quant.upper()
    exact = [file for file in files if quant_of(file) == wanted]
    return exact or [file for file in files if quant_of(file).removeprefix("UD-") == wanted]


def _stem(file: str) -> str:
    return _NUMBER_OF_A_PART.sub("", file.rpartition("/")[2].removesuffix(".gguf"))
