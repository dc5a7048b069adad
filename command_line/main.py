"""`mqstore COMMAND STORE …`: the commands by name, each loaded when it is called.

Source: interface.md 37 to 39.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from types import ModuleType
from typing import Any, TextIO

import click

ABOUT = """Stores of Apache RocketMQ and RabbitMQ on disk, without a broker.

STORE is the directory of a store, or a folder with several: a node's data directory, a folder of backups.

\b
mqstore info /backup/broker-a/store
mqstore cat /backup/broker-a/store --topic orders --last 5
mqstore find /backup/broker-a/store order-42

Exit codes: 0; 1 when damage or nothing was found; 2 for a usage error.
"""
HELP = {"help_option_names": ["-h", "--help"]}

COMMANDS: dict[str, tuple[str, str]] = {
    "info": ("info", "Shows a store at a glance: state, messages, times, lag."),
    "ls": ("ls", "Lists the queues of a store with their sizes."),
    "topics": ("topics", "Lists the topics of a RocketMQ store with kinds and sizes."),
    "cat": ("cat", "Prints messages as JSON lines, CSV or by a template."),
    "find": ("find", "Finds the messages with a key or an id."),
    "offsets": ("offsets", "Shows the offsets of consumer groups, and their lag."),
    "offsets reset": ("offsets_reset", "Sets the committed offsets of a consumer group."),
    "export": ("export", "Writes messages to a Parquet, JSON lines or CSV file."),
    "import": ("import_file", "Writes a Parquet or JSON lines file into a store."),
    "report": ("report", "Writes an HTML page: sizes, times, lag, dead letters."),
    "verify": ("verify", "Lists what is damaged in a store, and what a broker does."),
    "copy": ("copy", "Copies a store from a URI to a disk, or back."),
    "repair": ("repair", "Repairs what verify finds, in a copy or in place."),
    "definitions": ("definitions", "Prints what a RabbitMQ node must import first."),
}
"""Command → its module in `command_line.commands`, which has a click command of the same name, and its help."""


class WithoutPandas:
    """Hides pandas from pyarrow, which looks for it when converting a list to a column: loading pandas takes longer
    than most calls, and no command needs it.
    """

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Raises ModuleNotFoundError for pandas."""
        if fullname == "pandas":
            raise ModuleNotFoundError("no command needs pandas", name="pandas")


class Commands(click.Group):
    """A group that loads a command's module when the command is called; help and completion load none."""

    def main(self, *arguments: Any, standalone_mode: bool = True, **named: Any) -> Any:
        """Runs a call; mistakes in it are reported in one line on stderr."""
        run: Callable[..., Any] = super().main
        if not arguments and "args" not in named:
            sys.meta_path.insert(0, WithoutPandas())  # a process of its own
            _open_outputs()
            _accept_all_text(sys.stdout)
        if not standalone_mode:
            return run(*arguments, standalone_mode=False, **named)
        try:
            code = run(*arguments, standalone_mode=False, **named)
        except click.UsageError as error:
            code = error.exit_code
            _show(error)
        except OSError as error:
            code = _not_shown(error)
        sys.exit(code if isinstance(code, int) else 0)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the help."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command with this name."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"command_line.commands.{COMMANDS[cmd_name][0]}")
        found: click.Command = module.command
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """`offsets reset STORE` is the command `offsets reset`."""
        if " ".join(args[:2]) in COMMANDS:
            args = [" ".join(args[:2]), *args[2:]]
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            ctx.fail(f"No such command '{args[0]}'{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands with their help."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _open_outputs() -> None:
    """Sends to nowhere what a shell has closed (`>&-`): Python has no stream for it then."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (for the whole process)


def _accept_all_text(output: TextIO) -> None:
    """Makes an output of another encoding accept any text: a terminal shows what it can, a pipe or file gets UTF-8."""
    if not isinstance(output, TextIOWrapper) or output.encoding.lower().replace("-", "") == "utf8":
        return
    if output.isatty():
        output.reconfigure(errors="replace")
    else:
        output.reconfigure(encoding="utf-8")


def _not_shown(error: OSError) -> int:
    """The exit code of a call whose help cannot be written: a full disk, or a reader that has closed the pipe."""
    from command_line.outcome import FINE, MISTAKE, forget_output, say
    from command_line.output.lines import unwritable

    forget_output()
    if isinstance(error, BrokenPipeError):
        return FINE
    say(str(unwritable(error)))
    return MISTAKE


def _show(error: click.UsageError) -> None:
    """Prints the mistake and where to find help; for a call without a command, the help itself."""
    text = error.format_message()
    if text.startswith("Usage: "):
        click.echo(text, err=True)
        return
    where = error.ctx.command_path if error.ctx is not None else "mqstore"
    click.echo(f"mqstore: {text[:1].lower()}{text[1:].rstrip('.')} (see {where} --help)", err=True)


@click.command(cls=Commands, context_settings=HELP, help=ABOUT)
@click.version_option(package_name="mqstore", prog_name="mqstore")
def main() -> None:
    """The command: what it is called with decides which other one runs."""
