"""Assembles the commands and turns every user error into two lines and exit code 2."""

import errno
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn, TextIO, cast

import typer
from typer.main import get_command

from clippedgossip import __version__
from clippedgossip.errors import NO_TEXT, UserError, tell, unknown_name
from clippedgossip.own import blamed

COMMANDS = (
    "audit",
    "consensus",
    "reproduce",
    "bench",
    "demo",
    "examples",
    "data",
    "run",
    "report",
    "export",
    "sweep",
    "peer",
)
"""In the order of the help. Each has a file of its name: with a function of its name, and perhaps SETTINGS of
its command, or with `register`."""

EXTRAS = {
    "adapters": ("byzfl",),
    "export": ("pandas", "pyarrow", "tensorboardX"),
    "peer": ("blake3", "cryptography", "google", "grpc", "prometheus_client", "zstandard"),
    "sweep": ("submitit",),
    "watch": ("starlette", "uvicorn"),
}
"""Modules that may not be installed, by the extra that installs them."""

INTERRUPTED = 130
RESUMED = ("bench", "data", "demo", "reproduce", "run", "sweep")
"""Commands that resume."""

FORMER = {"--attackers": "--more-byzantine", "--random-pendants": "--pendants-random"}
"""Options that had another name. No help and no list shows it."""

app = typer.Typer(
    name="clippedgossip",
    help="Train models together on networks without a server, where some nodes are Byzantine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name in COMMANDS:
    _module: Any = import_module(f"clippedgossip.cli.{_name}")
    if hasattr(_module, "register"):
        _module.register(app)
    else:
        app.command(_name, **getattr(_module, "SETTINGS", {}))(getattr(_module, _name))


def _print_version(asked: bool) -> None:
    if asked:
        print(f"clippedgossip {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Options of the command itself."""


FULL = (errno.ENOSPC, errno.EDQUOT)
_THERE = (errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
REFUSED = (*FULL, *_THERE, errno.EROFS, errno.EACCES, errno.EPERM)
"""What a file system answers where a command may not read or write: no error of the program."""


class Words:
    """stderr. What nobody reads any more (`2>&1 | head`) is lost, and the work goes on."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        self._or_nowhere(lambda: self.stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._or_nowhere(self.stream.flush)

    def _or_nowhere(self, say: Callable[[], object]) -> None:
        try:
            say()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point of the `clippedgossip` command."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, by `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # open until the process ends
    if not isinstance(sys.stderr, Words):
        sys.stderr = cast("TextIO", Words(sys.stderr))
    given = (word.partition("=") for word in (sys.argv[1:] if arguments is None else arguments))
    arguments = [FORMER.get(name, name) + rest + value for name, rest, value in given]
    os.environ["MPLBACKEND"] = "agg"  # figures are files; a backend that is not there would stop matplotlib
    warnings.showwarning = _note
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors=NO_TEXT)  # a terminal may not have δ, nor UTF-8 what a file's name has
    if "OMP_WAIT_POLICY" not in os.environ:  # waiting threads of PyTorch should soon free their cores
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
            raise UserError(unknown_name("command", arguments[0], COMMANDS))
        command = get_command(app)
        _tidy_help(command, None)
        code = command(arguments, prog_name="clippedgossip", standalone_mode=False)
        sys.stdout.flush()
    except UserError as error:
        _fail(two_lines(str(error)))
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        extra = next((extra for extra, modules in EXTRAS.items() if missing in modules), None)
        if extra is None:
            raise
        _fail(f"{missing} is not installed\nfix: `pip install 'clippedgossip[{extra}]'`")
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        if error.errno not in REFUSED or (error.filename is None and error.errno not in FULL):
            raise
        if error.filename is not None:
            fix = "make room there, get the right to write there, or name another place"
            _fail(f"cannot use {error.filename}: {error.strerror}\n{fix}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes the rest at exit
        _fail(f"cannot write the output: {error.strerror}\nsend it elsewhere")
    except Exception as error:  # of click, or of the user's own code; all others are raised again
        culprit = blamed(error)
        if culprit is not None:
            _fail(culprit)
        if not hasattr(error, "format_message"):
            raise
        tell(_explain(error, arguments))
        sys.exit(2)
    if code == INTERRUPTED:  # the code that typer gives after Ctrl-C
        resumed = arguments[:1] and arguments[0] in RESUMED and "--again" not in arguments
        goes_on = "; finished work is kept, the same command resumes" if resumed else ""
        print(f"interrupted{goes_on}", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> NoReturn:
    tell(f"error: {message}")
    sys.exit(2)


def _tidy_help(command: Any, parent: Any) -> None:
    """`--json`, not `--json <bool>`; paragraphs as wide as the terminal, not broken as in the source."""
    paragraphs = (command.help or "").split("\n\n")
    command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    context = command.context_class(command, parent=parent, **command.context_settings)
    help_ = command.get_help_option(context)
    for parameter in [*command.params, *([help_] if help_ else [])]:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    for below in getattr(command, "commands", {}).values():
        _tidy_help(below, context)


def _note(message: Warning | str, *where: Any, **more: Any) -> None:
    """A warning as a line for users."""
    tell(f"note: {message}")


def two_lines(message: str) -> str:
    """The value on the first line, the bound or the fix on the second. Where a nearest name is suggested, the
    list of all names is cut to 80 columns."""
    if "\n" not in message:
        message = "\n".join(message.rsplit("; ", 1))
    first, *rest = message.split("\n")
    near = "did you mean" in first
    return "\n".join([first, *(_cut(line) if near and line.startswith("known: ") else line for line in rest)])


def _cut(line: str, width: int = 80) -> str:
    if len(line) <= width:
        return line
    end = ", …" if line.endswith(", …") else f", … ({line.count(', ') + 1} in all)"
    return line[: width + 2 - len(end)].rpartition(", ")[0] + end


def _explain(error: Any, arguments: Sequence[str]) -> str:
    """A wrong option or argument in two lines; a command without arguments by its help."""
    message = " ".join(error.format_message().split())
    context: Any = getattr(error, "ctx", None)
    cause = error.__cause__
    if type(error).__name__ == "NoArgsIsHelpError":
        return str(error.format_message())
    if message.startswith("No such command"):
        name = next(word for word in arguments if f"'{word}'" in message)
        return f"error: {two_lines(unknown_name('command', name, context.command.commands))}"
    if hasattr(cause, "errors"):  # of pydantic: a value that does not fit its option
        found = cause.errors()[0]
        name = error.param.opts[0] if error.param.opts[0].startswith("-") else error.param.metavar
        return f"error: {name} is {found['input']!r}\n{found['msg']}"
    where = context.command_path if context else f"clippedgossip {arguments[0]}"
    return f"error: {message}\n`{where} --help` lists arguments and options"
