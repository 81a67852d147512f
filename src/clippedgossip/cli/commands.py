"""Which commands there are."""

from importlib import import_module

import typer

COMMANDS = ("audit", "consensus", "reproduce", "demo", "data", "run", "report", "sweep", "peer")


def register_all(app: typer.Typer) -> None:
    """Add every command, in the order of the help; each file brings its own `register`."""
    for name in COMMANDS:
        module = f"clippedgossip.cli.{name}"
        try:
            command = import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            continue
        command.register(app)
