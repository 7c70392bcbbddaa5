"""Print completions of commands, options and their values for a shell.

planner completion bash > ~/.local/share/bash-completion/completions/planner
planner completion zsh >> ~/.zshrc
planner completion fish > ~/.config/fish/completions/planner.fish
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.cli.console import Console

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True, slots=True)
class Word:
    """An option or an argument."""

    names: tuple[str, ...]  # empty for an argument
    help: str
    values: tuple[str, ...]  # of a closed list; empty if any value is allowed
    takes: bool  # whether a value follows


def declare(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``planner completion``."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def run(options: argparse.Namespace, console: Console) -> int:
    """Print the script, which is made from the parsers of all commands."""
    from planner.cli import COMMANDS, _parser

    text = script(options.shell, COMMANDS, words_of(_parser()))
    if console.json:
        console.tell({"shell": options.shell, "script": text}, ())
    else:
        console.print(text.rstrip())
    return 0


def words_of(parser: argparse.ArgumentParser) -> Mapping[str, Sequence[Word]]:
    """The options and arguments of every command."""
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return {name: [_word(action) for action in command._actions] for name, command in commands.choices.items()}


def _word(action: argparse.Action) -> Word:
    values = tuple(map(str, action.choices or ()))
    return Word(tuple(action.option_strings), action.help or "", values, action.nargs != 0)


def script(shell: str, commands: Mapping[str, str], words: Mapping[str, Sequence[Word]]) -> str:
    """The completions of ``planner`` for a shell. Where no values are known, the shell completes names of files."""
    if shell == "fish":
        return "\n".join(_fish(commands, words)) + "\n"
    heading = ["autoload -U +X bashcompinit && bashcompinit"] if shell == "zsh" else []
    return "\n".join([*heading, *_bash(commands, words)]) + "\n"


def _bash(commands: Mapping[str, str], words: Mapping[str, Sequence[Word]]) -> Iterator[str]:
    """A function that completes commands, then the values of an option, options after a dash, and arguments."""
    yield "_planner() {"
    yield '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" known=""'
    yield '  if [ "$COMP_CWORD" -eq 1 ]; then'
    yield f'    known="{" ".join(commands)} --help --version"'
    yield "  else"
    yield '    case "${COMP_WORDS[1]} $before" in'
    for name, own in words.items():
        for word in own:
            if word.names and word.takes:
                pattern = " | ".join(f'"{name} {option}"' for option in word.names)
                yield f'      {pattern}) known="{" ".join(word.values)}" ;;'
    yield '      *) case "${COMP_WORDS[1]} $word" in'
    for name, own in words.items():
        options = " ".join(option for word in own for option in word.names)
        values = " ".join(value for word in own if not word.names for value in word.values)
        yield f'        "{name} "-*) known="{options}" ;;'
        if values:
            yield f'        "{name} "*) known="{values}" ;;'
    yield "      esac ;;"
    yield "    esac"
    yield "  fi"
    yield '  COMPREPLY=($(compgen -W "$known" -- "$word"))'
    yield "}"
    yield "complete -o default -F _planner planner"


def _fish(commands: Mapping[str, str], words: Mapping[str, Sequence[Word]]) -> Iterator[str]:
    """A line for each command, option and value."""
    for name, summary in commands.items():
        yield f"complete -c planner -f -n __fish_use_subcommand -a {name} -d {_quoted(summary)}"
    for name, own in words.items():
        start = f"complete -c planner -n '__fish_seen_subcommand_from {name}'"
        for word in own:
            values = f" -f -a {_quoted(' '.join(word.values))}" if word.values else ""
            names = "".join(f" -l {n[2:]}" if n.startswith("--") else f" -s {n[1:]}" for n in word.names)
            needs = " -r" if word.names and word.takes else ""
            if names or values:
                yield f"{start}{names}{needs}{values} -d {_quoted(word.help)}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
