"""Grammars that ended the process, hung it or ate its memory in some parser, and ordinary mistakes.

Run as a program it compiles each for a small vocabulary, asks for a few masks and prints what that cost; a child
process, because a mistake here would take the caller with it.
"""

import json
import resource
import sys
import time
from pathlib import Path

from tests.constraints.json_texts import END, byte_tokenizer
from worker.constraints.constraint import Unsupported, compiled


def _lines(*rules: str) -> str:
    return "\n".join(rules)


def _chain(n: int) -> str:
    return _lines("root ::= r0", *(f'r{i} ::= r{i + 1} "x"' for i in range(n)), f'r{n} ::= "y"')


def _doubling(n: int) -> str:
    return _lines("root ::= r0", *(f'r{i} ::= r{i + 1} "x" | r{i + 1} "y"' for i in range(n)), f'r{n} ::= "z"')


HOSTILE: dict[str, str] = {
    "20,000 parentheses": f'root ::= {"(" * 20_000}"a"{")" * 20_000}',
    "20,000 that never close": f"root ::= {'(' * 20_000}",
    "60 parentheses 350 times": f"root ::= {('(' * 60 + 'a' + ')?' * 60) * 350}\na ::= [a]",
    "from 5 down to 3": 'root ::= "a"{5,3}',
    "left recursion": "root ::= root",
    "left recursion twice": 'root ::= root root | "a" |',
    "hidden left recursion": 'root ::= b root "x" | "y"\nb ::= c\nc ::= "z" |',
    "20,000 rules in a row": _chain(20_000),
    "as many rules in a row as may be": _chain(990),
    "2^30 ways on": _doubling(30),
    "60 million elements": f'root ::= "{"a" * 30_000}"{{2000}}',
    "many times 2,000": f"root ::= {'[ab]{0,2000} ' * 4000}",
    "100,000 times": 'root ::= "a"{1,100000}',
    "a repeated repetition": "root ::= (((([ab]{0,2000}){0,2000}){0,2000}){0,2000}){0,2000}",
    "60,000 repetitions of repetitions": f'root ::= "a"{"*" * 60_000}',
    "more ways with every letter": 'root ::= ("a"+)+ "b"',
    "all ways everywhere": 'root ::= ((.*)* (.*)*)* "b"',
    "twice as many ways with every letter": 'root ::= "a" root "b" | "a" root "c" | "d"',
    "a number like a telephone's": f'root ::= "a"{{{"9" * 60_000}}}',
    "64 KiB of alternations": "root ::= " + " | ".join(['"a"'] * 10_000),
    "64 KiB of different alternations": 'root ::= ("' + '" | "'.join(f"{i:x}" for i in range(7000)) + '")*',
    "64 KiB of optional letters": "root ::= " + '"a"?' * 15_000,
    "64 KiB in a literal": f'root ::= "{"a" * 65_000}"',
    "64 KiB of classes": f"root ::= {''.join(f'[{chr(0x4E00 + i)}]' for i in range(12_000))}",
    "64 KiB in a class": f"root ::= [{''.join(chr(0x4E00 + 2 * i) for i in range(10_000))}]*",
    "NUL": 'root ::= "a"\0 what follows',
    "half a surrogate pair": 'root ::= "\ud800"',
    "a set that never ends": f"root ::= [{'a-' * 30_000}",
}

_L = "%llguidance {}\n"

LARK: dict[str, str] = {
    "20,000 parentheses in Lark": f'{_L}start: {"(" * 20_000}"a"{")" * 20_000}',
    "as many parentheses and rules as may be": _L
    + _lines("start: a0", *(f"a{i}: {'(' * 28}a{i + 1}{')' * 28}" for i in range(50)), 'a50: "x"'),
    "2,000 rules in a row": _L + _lines("start: r0", *(f'r{i}: r{i + 1} "x"' for i in range(2000)), 'r2000: "y"'),
    "8,000 terminals in a row": _L + _lines("start: R0", *(f'R{i}: R{i + 1} "x"' for i in range(5000)), 'R5000: "y"'),
    "a terminal that uses itself": f'{_L}start: A\nA: "a" B\nB: A | "b"',
    "a regex of 20,000 parentheses": f"{_L}start: /{'(' * 20_000}a{')' * 20_000}/",
    "a regex of 60 KiB": f"{_L}start: /{'a?' * 20_000}{'a' * 20_000}/",
    "a regex of 20 KiB": f"{_L}start: /{'a?' * 7_000}{'a' * 7_000}/",
    "repetitions in a regex": f"{_L}start: /((a{{0,1000}}b{{0,1000}}){{0,1000}}c){{0,1000}}/",
    "a regex of 2^20000 states": f"{_L}start: /(a|b)*a(a|b){{20000}}/",
    "20,000 nots": f'{_L}start: {"~" * 20_000}"a"',
    "a deep schema": _L + "start: %json " + '{"items":' * 7000 + "{}" + "}" * 7000,
    "deep Lark in Lark": f'{_L}start: {"%lark { start: " * 4000}"a"{"}" * 4000}',
    "4,000 imports": _L + "%import common.INT\n" * 3000 + "start: INT",
    "conditions in conditions": f'{_L}start: a::0\na::_: "x" %if {"not(" * 12_000}true{")" * 12_000}',
    "all substrings": f'{_L}start: %regex {{"substring_chars": "{"ab" * 30_000}"}}',
    "NUL in Lark": f'{_L}start: "a"\0',
}

MISTAKEN: dict[str, tuple[str, str]] = {
    "nothing": ("", "no rule named root"),
    "a range that ends before it begins": ("root ::= [a-cz-a]", "line 1, column 10: a range in here ends before"),
    "beyond Unicode": (r'root ::= "\UFFFFFFFF"', "no Unicode character"),
    "half a pair, escaped": (r"root ::= [\uD800-\uDFFF]", "no Unicode character"),
    "only a comment": ("# root", "no rule named root"),
    "another root": ('start ::= "a"', "no rule named root"),
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
"""The grammar's name → the text, and the words of the refusal."""


def _resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def _try(text: str) -> dict[str, str | float]:
    """The costs to compile it, and to go on by a few tokens; `error` says why it ended, if it did."""
    tokenizer = byte_tokenizer(longest_run=128)
    before_mib, began_s = _resident_mib(), time.process_time()
    try:
        matcher = compiled(tokenizer, "grammar", text, lambda _: None)
    except Unsupported as refusal:
        return {"error": str(refusal), "compile_s": time.process_time() - began_s, "step_s": 0.0, "mib": 0.0}
    compile_s, step_s = time.process_time() - began_s, 0.0
    for _ in range(20):
        began_s = time.process_time()
        mask = 0 if matcher.is_stopped() else int.from_bytes(matcher.compute_bitmask(), "little")
        ways = [token for token in range(tokenizer.vocab_size) if mask >> token & 1 and token != END]
        if ways:
            matcher.consume_token(ways[-1])
        step_s = max(step_s, time.process_time() - began_s)
    mib = _resident_mib() - before_mib
    return {"error": matcher.get_error(), "compile_s": compile_s, "step_s": step_s, "mib": mib}


def main() -> None:
    for name, text in {**HOSTILE, **LARK}.items():
        sys.stdout.write(json.dumps([name, _try(text)]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
