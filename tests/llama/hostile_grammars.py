"""Grammars that end the process, hang it or eat its memory when llama.cpp's parser gets them, and ordinary mistakes.

Run as a program with a GGUF's path it asks the real room about each and prints what came of it; a child process,
because a mistake here would take the caller with it.
"""

import json
import sys
from pathlib import Path

from worker.engine.contract import JobKey, Sampling, Submit, Violation
from worker.llama.devices import choose_device, devices
from worker.llama.grammar import Grammars
from worker.llama.model import Model


def _lines(*rules: str) -> str:
    return "\n".join(rules)


def _chain(n: int) -> str:
    return _lines("root ::= r0", *(f'r{i} ::= r{i + 1} "x"' for i in range(n)), f'r{n} ::= "y"')


def _doubling(n: int) -> str:
    return _lines("root ::= r0", *(f'r{i} ::= r{i + 1} "x" | r{i + 1} "y"' for i in range(n)), f'r{n} ::= "z"')


HOSTILE: dict[str, tuple[str, str]] = {
    "20,000 parentheses: a crash": (f'root ::= {"(" * 20_000}"a"{")" * 20_000}', "nested deeper than 64"),
    "20,000 that never close": (f"root ::= {'(' * 20_000}", "nested deeper than 64"),
    "from 5 down to 3: no end": ('root ::= "a"{5,3}', "above the greatest"),
    "hidden left recursion: no end": ('root ::= b root "x" | "y"\nb ::= c\nc ::= "z" |', "begin with itself"),
    "20,000 rules in a row: a deep recursion": (_chain(20_000), "more than 1000 rules begin with each other"),
    "2^30 ways on": (_doubling(30), "more than 600 alternatives"),
    "60 million elements": (f'root ::= "{"a" * 30_000}"{{2000}}', "more than 100000 elements"),
    "many times 2,000": (f"root ::= {'[ab]{0,2000} ' * 4000}", "more than 100000 elements"),
    "a repeated repetition": ('root ::= ("a"{0,50}){0,50}', "more than 2000 rules"),
    "a number like a telephone's": ('root ::= "a"{99999999999999999999999}', "more than 2000 repetitions"),
    "more than the library counts": ('root ::= "a"{0,100000}', "more than 2000 repetitions"),
    "NUL": ('root ::= "a"\0 what follows is not read', "cannot be part of a grammar"),
    "half a surrogate pair": ('root ::= "\ud800"', "cannot be part of a grammar"),
    "a set that never ends": (f"root ::= [{'a-' * 30_000}", "line 1, column 10: this cannot be read"),
}
"""What it is → the text, and what the refusal says."""

MISTAKEN: dict[str, tuple[str, str]] = {
    "nothing": ("", "no rule named root"),
    "a range that ends before it begins": ("root ::= [a-cz-a]", "line 1, column 10: a range in here ends before"),
    "beyond Unicode": (r'root ::= "\UFFFFFFFF"', "no Unicode character"),
    "half a pair, escaped": (r"root ::= [\uD800-\uDFFF]", "no Unicode character"),
    "only a comment": ("# root", "no rule named root"),
    "another root": ('start ::= "a"', "no rule named root"),
    "itself": ("root ::= root", "begin with itself"),
    "itself in the end": ('root ::= "a" | ("b" | root)', "begin with itself"),
    "undefined": ('root ::= "a"\n  b', "line 2, column 4: ::= is expected"),
    "undefined, used": ("root ::= (\n  b)", "line 2, column 3: this rule is not defined"),
    "a bar on the next line": ('root ::= "a"\n | "b"', "line 2, column 2: a rule's name is expected"),
    "an open literal": ('root ::= "a', "line 1, column 10: this cannot be read"),
    "an unknown escape": (r'root ::= "\d"', "column 10: this cannot be read"),
    "a short escape": (r"root ::= [\x4]", "column 10: this cannot be read"),
    "an underscore": ("root ::= a_b", "column 11: this cannot be read"),
    "an open group": ('root ::= ("a" ("b")', "column 10: this parenthesis is never closed"),
    "a closed group": ('root ::= "a")', "column 13: this parenthesis was never opened"),
    "nothing to repeat": ("root ::= *", "nothing before this to repeat"),
    "nothing in a literal to repeat": ('root ::= ""+', "nothing before this to repeat"),
    "nothing to repeat after a bar": ('root ::= "a" | ?', "nothing before this to repeat"),
    "an open brace": ('root ::= "a"{2', "column 13: this cannot be read"),
    "two numbers": ('root ::= "a"{2 3}', "a comma is missing"),
    "a byte order mark": ('\ufeffroot ::= "a"', "column 1: a rule's name is expected"),
}
"""As above."""

FOREIGN: dict[str, tuple[str, str]] = {
    "no such token": ("root ::= <no such token>", "no token of the model's vocabulary"),
    "no such number": ("root ::= <[4000000000]>", "no token of the model's vocabulary"),
    "no number": ("root ::= <[x]>", "no token of the model's vocabulary"),
    "a token without text": ("root ::= <[1]>", "this token has no text"),
    "refused by the library": ('root ::= "a"**', "llama.cpp refuses it: unsupported grammar, left recursion"),
}
"""What only the model or the library knows."""


def main() -> None:
    cpu = choose_device("cpu", devices())
    with Model.load(Path(sys.argv[1]), device=cpu, n_gpu_layers=0, on_progress=lambda _: None) as model:
        grammars = Grammars(model)
        for name, (text, _) in {**HOSTILE, **MISTAKEN, **FOREIGN}.items():
            submit = Submit(job=JobKey(0), prompt="", max_tokens=1, sampling=Sampling(seed=0), grammar=text)
            answer = grammars.constrain(submit)
            assert isinstance(answer, Violation), name
            assert (answer.field, answer.constraint) == ("grammar", "gbnf")
            sys.stdout.write(json.dumps([name, answer.message]) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
