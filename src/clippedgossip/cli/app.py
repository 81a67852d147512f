"""Assembles the commands and turns every user error into two lines and exit code 2."""

import sys
from collections.abc import Sequence
from typing import NoReturn

import typer

from clippedgossip.cli.commands import register_all
from clippedgossip.errors import UserError, unknown_name

app = typer.Typer(
    name="clippedgossip",
    help="Train models together on networks that have no server and some of whose members lie.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
register_all(app)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point of the `clippedgossip` command."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        known = {command.name for command in app.registered_commands} | {
            group.name for group in app.registered_groups
        }
        if arguments and not arguments[0].startswith("-") and arguments[0] not in known:
            raise UserError(unknown_name("command", arguments[0], (name for name in known if name)))
        app(arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    sys.exit(0)
