"""The command line: argv to a command, and every mistake to one line on stderr.

Each command is imported when it is called, so that `--help` stays fast.
"""

import importlib
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import rich_click as click
from click.core import ParameterSource
from click.exceptions import BadOptionUsage, Exit, NoArgsIsHelpError, NoSuchOption

from worker import __version__
from worker.argv import HELP_FLAGS, is_model_file, means_serve
from worker.config import spellings
from worker.config.combinations import check
from worker.config.environment import environment
from worker.config.option import SettingOption, TextType, config_option, shown
from worker.config.row import Panel
from worker.config.settings import Settings, options
from worker.errors import UsageError, WorkerError
from worker.observe.log_lines import escape
from worker.observe.redaction import shows_secret

PROGRAM = "llorch-worker"
MODEL_FILE = "model_file"
"""The argument of `serve` that may stand for `--model`."""
HF_REPO = "hf_repo"
"""The option that may stand for `--model hf:…`, as llama-server has it."""
_BROKEN_PIPE = 141
"""The exit code that a shell reports for a command that SIGPIPE ended."""
_INTERRUPTED = 130

_ABOUT = """\
Serve one GGUF model to many clients: OpenAI's API, and a job protocol for pool managers.

Flags without a command mean `serve`; `llorch-worker serve --help` explains them all.
"""

_ABOUT_SERVE = """\
Load a model and answer jobs until SIGTERM.

The `listening` log line has the address; /readyz answers 200 once the worker accepts jobs.
"""

_FOOTER = """\
Examples:
  llorch-worker --model smollm2-135m-instruct
  llorch-worker -m ./model.gguf --port 0 -np 16 --device cuda:0
  llorch-worker -hf ORG/REPO:Q4_K_M
  curl http://127.0.0.1:8080/v1/chat/completions \\
    -H 'content-type: application/json' \\
    -d '{"messages":[{"role":"user","content":"Hello"}],"max_tokens":32}'

Where a value comes from:
  A flag, else the environment, else the config file, else the default.
  Environment: LLORCH_ and the flag in capitals with _ for -, as in
    LLORCH_CTX_SIZE=4096; a switch is 1, true, yes, on, 0, false, no or off.
    Only --api-key differs: LLORCH_API_TOKEN, or LLORCH_API_KEY. Empty means
    not given, but an empty token is an error.
  Config file: --config FILE or LLORCH_CONFIG; TOML, the flags as keys:
    model = "smollm2-135m-instruct"
    ctx-size = 4096

Exit codes:
  0  graceful end: SIGTERM, SIGINT or /shutdown
  1  the worker could not start or could not continue
  2  a flag, a variable or the config file is wrong
"""

_HELP_LAYOUT: dict[str, Any] = {
    "help_option_names": HELP_FLAGS,
    "rich_help_config": {"footer_text": _FOOTER, "text_paragraph_linebreaks": "\n\n"},
}

_ELSEWHERE = {
    "generate": ("worker.commands.generate:generate", "Answer one prompt in the terminal."),
    "chat": ("worker.commands.chat:chat", "Talk with a model in the terminal."),
    "models": ("worker.commands.models:models", "List, fetch and verify the models known by name."),
    "inspect": ("worker.commands.inspect_gguf:inspect", "Show what a GGUF file holds and the memory it needs."),
    "launch": ("worker.commands.launch:launch", "Print the configuration of a coding agent for a running worker."),
    "devices": ("worker.commands.devices:devices", "Show the devices that llama.cpp can use, with their memory."),
    "parity": ("parity.command:parity", "Compare what a model computes with its reference in PyTorch."),
}
"""name → (module:attribute, one line of help)"""
_EXTRAS = ("parity",)
"""Packages with commands that need an extra of the same name."""


class CommandElsewhere(click.RichCommand):
    """A command known by name and one line of help; its module is imported when it is called."""

    def __init__(self, name: str, place: str, help: str) -> None:
        super().__init__(name=name, help=help)
        self._place = place

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        extra.setdefault("rich_help_config", {"footer_text": None})  # ours is about serve; it would be inherited
        return imported(self._place).make_context(info_name, args, parent, **extra)


class CommandLine(click.RichGroup):
    """The group; what does not begin with a command is for `serve`, also nothing at all."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if means_serve(args) and args[:1] != ["serve"]:
            args = ["serve", *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)


def imported(place: str) -> click.Command:
    """The command at `module:attribute`. Raises: UsageError if its package or a library of its extra is missing."""
    module, attribute = place.split(":")
    name = module.partition(".")[0]
    try:
        command: click.Command = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if name not in _EXTRAS:
            raise
        what = "is not installed" if (error.name or "").partition(".")[0] == name else f"needs {error.name}"
        raise UsageError(f"{name} {what}: pip install -e '.[{name}]' in a checkout") from error
    return command


def run(argv: Sequence[str]) -> int:
    """The command's exit code; what went wrong is then one line on stderr."""
    try:
        code = _invoke(argv)
        print(end="", flush=True)
    except OSError as error:
        # Python flushes once more at exit, which must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader of a pipe left early (`| head`)
            return _BROKEN_PIPE
        return _fail(f"{error.filename or 'standard output'}: {error.strerror or error}", 1)
    return code


def read_settings(ctx: click.Context, default_model: Callable[[Path | None], str] | None = None) -> Settings:
    """The settings of a command that has `setting_options`; legacy spellings count as flags.

    `default_model` names the model where the user did not, given `--catalog`. Raises: UsageError, also without either.
    """
    source = ctx.get_parameter_source
    given = {name: value for name, value in ctx.params.items() if source(name) is not ParameterSource.DEFAULT}
    flags = {name: value for name, value in given.items() if source(name) is ParameterSource.COMMANDLINE}
    if (device := spellings.device_asked_for(flags)) is not None:
        given["device"] = device
    if MODEL_FILE in flags or HF_REPO in flags:
        given["model"] = _other_model(flags)
    if "model" not in given and default_model is not None:
        given["model"] = default_model(given.get("catalog"))
    if "model" not in given:
        raise UsageError(f"no model: give --model REF, LLORCH_MODEL or a config file; see {PROGRAM} --help")
    names = {field.name for field in fields(Settings)}
    return check(Settings(**{name: given[name] for name in given if name in names}), given)


def _other_model(flags: Mapping[str, Any]) -> str:
    """The model that was given without `--model`. Raises: UsageError where it is given twice, or no GGUF; click's."""
    places = {"model": "--model ", HF_REPO: "-hf ", MODEL_FILE: ""}
    found = [f"{place}{shown(flags[name])}" for name, place in places.items() if name in flags]
    if HF_REPO not in flags and not is_model_file(flags[MODEL_FILE]):
        raise UsageError(f"{shown(flags[MODEL_FILE])} is neither a flag nor a .gguf file; give a model as --model REF")
    if len(found) > 1:
        raise UsageError(f"two models: {' and '.join(found[:2])}; give one")
    if HF_REPO in flags:
        repo: str = flags[HF_REPO]
        return repo if repo.startswith("hf:") else f"hf:{repo}"
    return TextType().convert(flags[MODEL_FILE], None, None)


def setting_options(*panels: Panel, also: Collection[str] = (), but: Collection[str] = ()) -> list[click.Option]:
    """An option for every setting, and `--config`. With panels only theirs and those named have a flag, less `but`."""
    settings = options()
    hf_repo = SettingOption(
        ["--hf-repo"],
        also=("-hf",),
        type=TextType(),
        panel="Model",
        metavar="ORG/REPO[:QUANT]",
        help="Serve this repository of the Hugging Face hub; short for --model hf:ORG/REPO[:QUANT].",
    )
    for option in (hf_repo, *settings):
        is_wanted = not panels or option.panel in panels or option.name in also
        option.has_flag = is_wanted and option.name not in but
        option.hidden = not option.has_flag
    return [settings[0], hf_repo, *settings[1:], config_option(settings)]


def _command_line() -> click.RichGroup:
    elsewhere = (CommandElsewhere(name, place, line) for name, (place, line) in _ELSEWHERE.items())
    commands = [serve_command(), *elsewhere]
    group = CommandLine(name=PROGRAM, commands=commands, help=_ABOUT, context_settings=_HELP_LAYOUT)
    return click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")(group)


def serve_command() -> click.RichCommand:
    model_file = click.Argument([MODEL_FILE], required=False, metavar="")
    return click.RichCommand(
        name="serve",
        callback=_serve,
        options_metavar="--model REF [OPTIONS]",
        params=[model_file, *setting_options(), *spellings.legacy_options()],
        help=_ABOUT_SERVE,
        context_settings=_HELP_LAYOUT,
    )


@click.pass_context
def _serve(ctx: click.Context, /, **params: Any) -> None:
    settings = read_settings(ctx)
    from worker.serve import run as serve  # noqa: PLC0415 - heavy; help and usage errors come before it

    unread, shows_secrets = spellings.unread(environment()), shows_secret(sys.argv)
    raise SystemExit(
        serve(settings, ignored_flags=spellings.ignored(params), unread=unread, shows_secrets=shows_secrets)
    )


def _invoke(argv: Sequence[str]) -> int:
    try:
        command_line = _command_line()
        with command_line.make_context(PROGRAM, list(argv)) as ctx:
            command_line.invoke(ctx)
    except Exit as left:
        return left.exit_code
    except click.ClickException as error:
        return _fail(_wording(error, argv), error.exit_code)
    except WorkerError as error:
        return _fail(str(error), 2 if isinstance(error, UsageError) else 1)
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    return 0


def _wording(error: click.ClickException, argv: Sequence[str]) -> str:
    match error:
        case NoSuchOption():
            return _unknown_flag(error, argv)
        case NoArgsIsHelpError():
            return f"a command is missing; see {error.ctx.command_path} --help"
        case BadOptionUsage(option_name=name) if error.message.endswith("requires an argument."):
            return f"{name}: a value is missing"
        case _:
            return error.format_message()


def _unknown_flag(error: NoSuchOption, argv: Sequence[str]) -> str:
    """The flags as they were typed, and what each may have meant.

    A command line of llama-server has several that do not exist here. All of them are named at once.
    """
    params = error.ctx.command.params if error.ctx is not None else []
    visible = [param for param in params if isinstance(param, click.Option) and not param.hidden]
    ours = [name for param in visible for name in (*param.opts, *param.secondary_opts)]
    known = {name for param in params for name in (*param.opts, *param.secondary_opts)}
    typed = [name for name in (arg.partition("=")[0] for arg in argv if arg.startswith("-")) if name not in known]
    # click names one letter of a cluster: it reads `-ngl` as `-n -g -l`.
    name = error.option_name
    clusters = [arg for arg in typed if not arg.startswith("--") and name[1:] in arg and not name.startswith("--")]
    first = clusters[0] if clusters else name
    unknown = dict.fromkeys((first, *(name for name in typed if spellings.is_llama_servers(name))))
    hints = {flag: spellings.flag_hint(flag, ours) for flag in unknown}
    if len(hints) == 1:
        return f"no such option: {first}" + (f"; {hints[first]}" if hints[first] else "")
    return "no such options: " + "; ".join(f"{flag}: {hint}" if hint else flag for flag, hint in hints.items())


def _fail(message: str, code: int) -> int:
    print(f"{PROGRAM}: error: {escape(' '.join(message.split()))}", file=sys.stderr)
    return code
