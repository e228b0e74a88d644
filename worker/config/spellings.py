"""Guesses at the flag or variable that a user meant by one that does not exist.

These are hints in an error line, not aliases, which settings.py has. Refuses to know: how arguments are parsed. Pure.
"""

import difflib
from collections.abc import Collection, Mapping

from worker.config.option import is_service_address
from worker.config.settings import options

LLAMA_SERVER: dict[str, tuple[str, ...]] = {
    "--model FILE, after a download": ("-mu", "--model-url"),
    "--hf-repo": ("-hfr",),
    "--model hf:ORG/REPO::file=NAME.gguf": ("-hff", "--hf-file"),
    "--served-model-name": ("-a", "--alias"),
    "--draft-model": (
        "-md",
        "--model-draft",
        "--spec-draft-model",
        "-hfd",
        "-hfrd",
        "--hf-repo-draft",
        "--spec-draft-hf",
    ),
    "--draft-max": ("--draft", "--draft-n", "--draft-max", "--spec-draft-n-max"),
    "--draft-device": ("-devd", "--device-draft", "--spec-draft-device"),
    "--prompt-lookup or --mtp": ("--spec-type", "--spec-default"),
    "--chat-template": ("--chat-template-file",),
    "--ubatch-size": ("-ub",),
    "--threads-batch": ("-tb",),
    "--cache-type-k": ("-ctk",),
    "--cache-type-v": ("-ctv",),
    "--prefix-cache-mb": ("-cram", "--cache-ram"),
    "--prefix-cache-dir": ("--slot-save-path",),
    "--device": ("-dev",),
    "--gpu-layers": ("--n-gpu-layers",),
    "--split-mode": ("-sm",),
    "--tensor-split": ("-ts",),
    "--main-gpu": ("-mg",),
    "--inference-timeout-sec": ("-to", "--timeout"),
    "--api-key": ("--api-key-file",),
    "--cors-origin": ("--cors-origins",),
    "--no-page": ("--no-webui", "--no-ui"),
    "--log-level": ("-v", "--verbose", "--log-verbose", "-lv", "--verbosity", "--log-verbosity", "--log-disable"),
    "--max-tokens": ("-n", "--predict", "--n-predict"),
    "--max-tokens-out": ("-n", "--predict", "--n-predict"),
    "--seed": ("-s", "--seed"),
    "--temperature": ("--temp", "--temperature"),
    "--top-k": ("--top-k",),
    "--top-p": ("--top-p",),
    "--min-p": ("--min-p",),
    "--repetition-penalty": ("--repeat-penalty", "--repetition-penalty"),
    "--stop": ("-r", "--reverse-prompt"),
}
"""Our flags ← llama-server's; of two the one that the command has. Source: common/arg.cpp."""

OF_A_REQUEST = frozenset({"--seed", "--temperature", "--top-k", "--top-p", "--min-p", "--repetition-penalty", "--stop"})
"""Fields for which `serve` has no flag, because each request sets them."""

NO_FLAG: dict[str, tuple[str, ...]] = {
    "it is always on here, so leave it out": (
        *("--jinja", "--metrics", "-cb", "--cont-batching", "-kvu", "--kv-unified", "--cache-prompt", "--warmup"),
        *("--ui", "--webui", "--mmap", "--repack", "-kvo", "--kv-offload", "-fit", "--fit"),
    ),
    "it is always off here, so leave it out": (
        *("--no-context-shift", "--no-mmproj", "--no-perf", "--no-slots", "--no-mmproj-auto"),
        *("--no-log-prefix", "--no-log-timestamps"),
    ),
    "it cannot be switched off here, so leave it out": (
        *("--no-jinja", "-nocb", "--no-cont-batching", "-no-kvu", "--no-kv-unified", "--no-cache-prompt"),
        *("--no-warmup", "--no-mmap", "-nr", "--no-repack", "-nkvo", "--no-kv-offload"),
    ),
    "there is no such setting here, so leave it out": (
        *("--mlock", "-lm", "--load-mode", "-dio", "--direct-io", "--numa", "--prio", "--poll", "--perf", "--keep"),
        *("-C", "--cpu-mask", "-Cr", "--cpu-range", "--cpu-strict", "--no-host", "--op-offload", "--no-op-offload"),
        *("-dt", "--defrag-thold", "--check-tensors", "--cache-reuse", "-sps", "--slot-prompt-similarity"),
        *("--context-shift", "-ctxcp", "--ctx-checkpoints", "--swa-checkpoints", "--spm-infill", "--threads-http"),
        *("--log-colors", "--log-prefix", "--log-timestamps", "--draft-min", "--draft-n-min", "--draft-p-min"),
        *("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "-ctkd", "--cache-type-k-draft", "-ctvd"),
        *("--cache-type-v-draft", "-td", "--threads-draft", "-tbd", "--threads-batch-draft", "-e", "--escape"),
        *("-sp", "--special", "--tags", "--sleep-idle-seconds", "--reuse-port", "-fitt", "--fit-target", "-fitc"),
        *("--fit-ctx", "--spec-draft-n-min", "--spec-draft-p-min", "--samplers", "--sampler-seq", "--mirostat"),
        *("--mirostat-lr", "--mirostat-ent", "--dynatemp-range", "--dynatemp-exp", "--dry-sequence-breaker"),
    ),
    "each request has a field for it": (
        *("--frequency-penalty", "--presence-penalty", "--repeat-last-n", "--typical", "--typical-p", "--top-nsigma"),
        *("--top-n-sigma", "--xtc-probability", "--xtc-threshold", "--dry-multiplier", "--dry-base"),
        *("--dry-allowed-length", "--dry-penalty-last-n", "-l", "--logit-bias", "--ignore-eos", "--grammar"),
        *("--grammar-file", "-j", "--json-schema", "-jf", "--json-schema-file", "-rea", "--reasoning"),
        *("--reasoning-effort", "--reasoning-budget", "--reasoning-format"),
    ),
    "GET /health and GET /metrics show the slots and the model": ("--slots", "--props"),
    "a worker serves text only": (
        *("-mm", "--mmproj", "-mmu", "--mmproj-url", "--mmproj-auto", "--mmproj-offload", "--no-mmproj-offload"),
        *("--image-min-tokens", "--image-max-tokens", "--media-path"),
    ),
    "a worker has no embeddings and no reranking": (
        *("--embedding", "--embeddings", "--rerank", "--reranking", "--pooling", "--embd-normalize"),
    ),
    "adapters and control vectors are not supported": (
        *("--lora", "--lora-scaled", "--lora-init-without-apply", "--control-vector", "--control-vector-scaled"),
        *("--control-vector-layer-range",),
    ),
    "the file's own value counts": (
        *("--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale", "--yarn-orig-ctx"),
        *("--yarn-ext-factor", "--yarn-attn-factor", "--yarn-beta-slow", "--yarn-beta-fast", "--override-kv"),
    ),
    "tensors cannot be placed one by one: --gpu-layers places whole layers": (
        *("-ot", "--override-tensor", "-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe", "-ncffn", "--n-cpu-ffn"),
    ),
    "devices of other machines are not supported": ("--rpc",),
    "a worker serves one model: start one for each": (
        *("--models-preset", "--models-max", "--models-autoload", "--no-models-autoload"),
    ),
    "`llorch-worker devices` lists them": ("--list-devices",),
    "`llorch-worker models list` lists them": ("-cl", "--cache-list"),
    "set the variable HF_TOKEN": ("-hft", "--hf-token"),
    "set the variable HF_HUB_OFFLINE=1": ("--offline",),
    "a proxy in front does this": (
        *("--ssl-key-file", "--ssl-cert-file", "--api-prefix", "--path", "--cors-methods", "--cors-headers"),
        *("--cors-credentials", "--no-cors-credentials"),
    ),
    "the log goes to standard error: redirect it with 2>FILE": ("--log-file",),
    "each request brings its prompt": ("-p", "--prompt", "-f", "--file", "-bf", "--binary-file"),
    "a worker runs no tools: the client does": (
        *("--tools", "--agent", "-ag", "--mcp-servers-config", "--mcp-servers-json", "--ui-mcp-proxy"),
        *("--webui-mcp-proxy",),
    ),
}
"""The advice ← llama-server's flags that have no flag here. Source: common/arg.cpp, and older releases of it."""

PREFIX = "LLORCH_"
READ_ELSEWHERE = {"LLORCH_RUN_ID", "LLORCH_PROOF_DIR", "LLORCH_WHEELS", "LLORCH_CUDA_ARCHITECTURES"}
"""Variables that are no settings: those of other commands and of the build."""

_OF_A_SERVICE = (
    "Kubernetes sets it for a service named llorch, so it is ignored: give the port with --port or in the config file, "
    "or rename the service"
)


def flag_hint(flag: str, ours: Collection[str]) -> str:
    """The hint that follows "no such option", such as `did you mean --model?`; empty if nothing is near.

    `ours` are the flags of the command that may be named.
    """
    dashed = flag[:2] + flag[2:].replace("_", "-")
    if dashed in ours:
        return f"did you mean {dashed}?"
    meant = [target for target, theirs in LLAMA_SERVER.items() if dashed in theirs]
    for target in meant:
        if target.split(maxsplit=1)[0] in ours:
            return f"did you mean {target}?"
    if meant and meant[0] in OF_A_REQUEST:
        return f"each request sets its own {meant[0][2:].replace('-', '_')}"
    if said := next((said for said, theirs in NO_FLAG.items() if dashed in theirs), ""):
        return said
    near = difflib.get_close_matches(dashed, ours, n=3, cutoff=0.65)
    return f"did you mean {' or '.join(near)}?" if near else ""


def is_llama_servers(flag: str) -> bool:
    """True for a flag by which llama-server is known to mean something."""
    return any(flag in theirs for theirs in (*LLAMA_SERVER.values(), *NO_FLAG.values()))


def unread(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return (name, what to say of it) for each variable that looks like one of ours and gives no setting.

    Kubernetes puts the addresses of a service named llorch into every container of its namespace. Of these only the one
    that has a setting's name is reported.
    """
    known = ["LLORCH_CONFIG", *(name for option in options() for name in option.variables)]
    return [
        *((name, _OF_A_SERVICE) for name in known if is_service_address(name, environ.get(name, ""))),
        *(
            (name, _variable_hint(name, known))
            for name in sorted(environ)
            if name.startswith(PREFIX)
            and not name.startswith(f"{PREFIX}TEST_")
            and name not in READ_ELSEWHERE.union(known)
            and "_SERVICE_" not in name
            and "_PORT_" not in name
            and not is_service_address(name, environ[name])
        ),
    ]


def _variable_hint(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name.removeprefix(PREFIX), [one.removeprefix(PREFIX) for one in known], n=1)
    return f"no setting has this name; did you mean {PREFIX}{near[0]}?" if near else "no setting has this name"
