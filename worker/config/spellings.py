"""What somebody may have meant by a flag or a variable that does not exist here.

These are hints in an error line, not aliases. Refuses to know: how arguments are parsed. Pure.
"""

import difflib
from collections.abc import Collection, Iterator, Mapping

LLAMA_SERVER: dict[str, tuple[str, ...]] = {
    "-m": ("--model",),
    "-mu": ("--model FILE, after a download",),
    "--model-url": ("--model FILE, after a download",),
    "-hf": ("--model hf:ORG/REPO",),
    "-hfr": ("--model hf:ORG/REPO",),
    "--hf-repo": ("--model hf:ORG/REPO",),
    "-hff": ("--model hf:ORG/REPO::file=NAME.gguf",),
    "--hf-file": ("--model hf:ORG/REPO::file=NAME.gguf",),
    "-a": ("--model-ref",),
    "--alias": ("--model-ref",),
    "-c": ("--ctx-size",),
    "-np": ("--parallel",),
    "-b": ("--batch-size",),
    "-ub": ("--ubatch-size",),
    "-t": ("--threads",),
    "-tb": ("--threads-batch",),
    "-fa": ("--flash-attn",),
    "-ctk": ("--cache-type-k",),
    "-ctv": ("--cache-type-v",),
    "-cram": ("--prefix-cache-mb",),
    "--cache-ram": ("--prefix-cache-mb",),
    "-dev": ("--device",),
    "-ngl": ("--gpu-layers",),
    "--n-gpu-layers": ("--gpu-layers",),
    "-sm": ("--split-mode",),
    "-ts": ("--tensor-split",),
    "-mg": ("--main-gpu",),
    "-to": ("--inference-timeout-sec",),
    "--timeout": ("--inference-timeout-sec",),
    "--api-key-file": ("--api-key",),
    "-n": ("--max-tokens", "--max-tokens-out"),
    "--predict": ("--max-tokens", "--max-tokens-out"),
    "--n-predict": ("--max-tokens", "--max-tokens-out"),
    "-s": ("--seed",),
    "--seed": ("--seed",),
    "--temp": ("--temperature",),
    "--temperature": ("--temperature",),
    "--top-k": ("--top-k",),
    "--top-p": ("--top-p",),
    "--min-p": ("--min-p",),
    "--repeat-penalty": ("--repetition-penalty",),
    "--repetition-penalty": ("--repetition-penalty",),
    "-r": ("--stop",),
    "--reverse-prompt": ("--stop",),
}
"""llama-server's flags → ours, the first that the command has. Source: common/arg.cpp."""

OF_A_REQUEST = frozenset({"--seed", "--temperature", "--top-k", "--top-p", "--min-p", "--repetition-penalty", "--stop"})
"""What `serve` has no flag for, because each request says it."""

PREFIX = "LLORCH_"
READ_ELSEWHERE = frozenset({"LLORCH_RUN_ID", "LLORCH_PROOF_DIR", "LLORCH_WHEELS", "LLORCH_CUDA_ARCHITECTURES"})
"""Variables of other commands and of the build."""


def flag_hint(flag: str, ours: Collection[str]) -> str:
    """What to say after "no such option": `did you mean --model?`; empty where nothing is near.

    `ours` are the flags of the command that may be named.
    """
    dashed = flag[:2] + flag[2:].replace("_", "-")
    if dashed in ours:
        return f"did you mean {dashed}?"
    meant = LLAMA_SERVER.get(dashed, ())
    for target in meant:
        if target.split(maxsplit=1)[0] in ours:
            return f"did you mean {target}?"
    if meant and meant[0] in OF_A_REQUEST:
        return f"each request says its own {meant[0][2:].replace('-', '_')}"
    near = difflib.get_close_matches(dashed, ours, n=3)
    return f"did you mean {' or '.join(near)}?" if near else ""


def unknown_variables(environ: Mapping[str, str], known: Collection[str]) -> Iterator[tuple[str, str]]:
    """(name, what to say of it) of each variable that looks like one of ours and is none.

    Kubernetes puts the addresses of a service named llorch into every container of its namespace; nobody reads those.
    """
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in known or name in READ_ELSEWHERE or name.startswith(f"{PREFIX}TEST_"):
            continue
        if "_SERVICE_" in name or "_PORT_" in name or environ[name].startswith(("tcp://", "udp://")):
            continue
        near = difflib.get_close_matches(name.removeprefix(PREFIX), [one.removeprefix(PREFIX) for one in known], n=1)
        yield name, f"no setting has this name; did you mean {PREFIX}{near[0]}?" if near else "no setting has this name"
