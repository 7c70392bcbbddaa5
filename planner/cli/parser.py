"""The parser of the command line: it loads the arguments of a command when they are needed, and explains typos."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from itertools import takewhile
from textwrap import dedent, indent
from types import ModuleType
from typing import Any, NoReturn

from graphs.common.errors import nearest
from planner.cli.statuses import BAD_INPUT
from planner.cli.streams import complain


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, with the nearest word that exists."""

    def __init__(self, **settings: Any) -> None:
        wide = partial(argparse.RawDescriptionHelpFormatter, max_help_position=32)  # keeps the lines of examples
        super().__init__(**settings, formatter_class=wide, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is, and exit with status 2."""
        complain(f"{self.prog}: {message}{'' if message.endswith('?') else ';'} see `{self.prog} --help`")
        sys.exit(BAD_INPUT)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but refuse unknown words here, where the name of the command is known.

        Unknown options come first; argparse would first complain about a required option that is misspelt.
        """
        for word in takewhile(lambda word: word != "--", args) if self._subparsers is None else ():
            option = word.partition("=")[0]
            if option.startswith("--") and option not in self._option_string_actions:
                self.error(f"there is no option '{option}'{nearest(option, self._option_string_actions)}")
        options, left = super().parse_known_args(args, namespace)
        if left and self._subparsers is not None and left[0].startswith("-"):
            self.error(f"there is no option '{left[0]}' before the name of a command")
        if left:
            self.error(f"'{left[0]}' is one word too many")
        return options, left

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not in a closed list. argparse offers no public method to override."""
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(action, f"'{value}' is none of {', '.join(known)}{nearest(str(value), known)}")


def command_module(command: str) -> ModuleType:
    """The module of a command: a docstring with a summary and examples, ``declare`` and ``run``."""
    return import_module(f"planner.cli.{command.replace('-', '_')}_")


def declare(command: argparse.ArgumentParser, module: ModuleType) -> None:
    """Declare the arguments of a command and those that every command has, and take over its examples."""
    command.description, _, examples = (module.__doc__ or "").strip().partition("\n\n")
    command.epilog = f"examples:\n{indent(dedent(examples), '  ')}" if examples else None
    module.declare(command)
    command.add_argument("--json", action="store_true", help="print JSON instead of tables")
    command.add_argument("-q", "--quiet", action="store_true", help="print only errors and documents")
    if command.get_default("writes") is not None:
        command.add_argument("--force", action="store_true", help="overwrite existing files")


def command_of(words: Sequence[str]) -> str | None:
    """The first word that is not an option."""
    return next((word for word in words if not word.startswith("-")), None)
