"""Grammars that ended the process, hung it or ate its memory in some parser.

Run as a program it compiles each for a small vocabulary, asks for a few masks and prints what that cost; a child
process, because a mistake here would take the caller with it.
"""

import json
import resource
import sys
import time
from pathlib import Path

from tests.constraints.json_texts import END, byte_tokenizer
from tests.tables import table
from worker.constraints.constraint import Unsupported, compiled


def _lines(*rules: str) -> str:
    return "\n".join(rules)


def _chain(n: int) -> str:
    return _lines("root ::= r0", *(f'r{i} ::= r{i + 1} "x"' for i in range(n)), f'r{n} ::= "y"')


def _doubling(n: int) -> str:
    return _lines("root ::= r0", *(f'r{i} ::= r{i + 1} "x" | r{i + 1} "y"' for i in range(n)), f'r{n} ::= "z"')


HOSTILE: dict[str, str] = {
    **table(__file__, "GBNF"),
    "60 parentheses 350 times": f"root ::= {('(' * 60 + 'a' + ')?' * 60) * 350}\na ::= [a]",
    "20,000 rules in a row": _chain(20_000),
    "as many rules in a row as may be": _chain(990),
    "2^30 ways on": _doubling(30),
    "64 KiB of different alternations": 'root ::= ("' + '" | "'.join(f"{i:x}" for i in range(7000)) + '")*',
    "64 KiB of classes": f"root ::= {''.join(f'[{chr(0x4E00 + i)}]' for i in range(12_000))}",
    "64 KiB in a class": f"root ::= [{''.join(chr(0x4E00 + 2 * i) for i in range(10_000))}]*",
}

_L = "%llguidance {}\n"

LARK: dict[str, str] = {
    **table(__file__, "Lark"),
    "as many parentheses and rules as may be": _L
    + _lines("start: a0", *(f"a{i}: {'(' * 28}a{i + 1}{')' * 28}" for i in range(50)), 'a50: "x"'),
    "2,000 rules in a row": _L + _lines("start: r0", *(f'r{i}: r{i + 1} "x"' for i in range(2000)), 'r2000: "y"'),
    "8,000 terminals in a row": _L + _lines("start: R0", *(f'R{i}: R{i + 1} "x"' for i in range(5000)), 'R5000: "y"'),
}


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
