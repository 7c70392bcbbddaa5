"""Print completions of commands, options and their values for a shell.

planner completion bash > ~/.local/share/bash-completion/completions/planner
planner completion zsh >> ~/.zshrc
planner completion fish > ~/.config/fish/completions/planner.fish
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence

from planner.cli.console import Console

SHELLS = ("bash", "zsh", "fish")


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``planner completion``."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def run(options: argparse.Namespace, console: Console) -> int:
    """Print the script, which is made from the parsers of all commands."""
    from planner.cli import COMMANDS, _parser

    (commands,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    words = {name: command._actions for name, command in commands.choices.items()}
    heading = "autoload -U +X bashcompinit && bashcompinit\n" if options.shell == "zsh" else ""
    lines = _fish(COMMANDS, words) if options.shell == "fish" else _bash(COMMANDS, words)
    text = heading + "\n".join(lines) + "\n"
    if console.json:
        console.tell({"shell": options.shell, "script": text}, ())
    else:
        console.print(text.rstrip())
    return 0


def _values(action: argparse.Action) -> str:
    """Return the values of a closed list; empty if any value is allowed, where the shell completes names of files."""
    return " ".join(map(str, action.choices or ()))


def _bash(commands: Mapping[str, str], words: Mapping[str, Sequence[argparse.Action]]) -> Iterator[str]:
    """Yield a function that completes commands, then the values of an option, options after a dash, and arguments."""
    yield "_planner() {"
    yield '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" known=""'
    yield '  if [ "$COMP_CWORD" -eq 1 ]; then'
    yield f'    known="{" ".join(commands)} --help --version"'
    yield "  else"
    yield '    case "${COMP_WORDS[1]} $before" in'
    for name, own in words.items():
        for word in own:
            if word.option_strings and word.nargs != 0:
                pattern = " | ".join(f'"{name} {option}"' for option in word.option_strings)
                yield f'      {pattern}) known="{_values(word)}" ;;'
    yield '      *) case "${COMP_WORDS[1]} $word" in'
    for name, own in words.items():
        options = " ".join(option for word in own for option in word.option_strings)
        values = " ".join(_values(word) for word in own if not word.option_strings and word.choices)
        yield f'        "{name} "-*) known="{options}" ;;'
        if values:
            yield f'        "{name} "*) known="{values}" ;;'
    yield "      esac ;;"
    yield "    esac"
    yield "  fi"
    yield '  COMPREPLY=($(compgen -W "$known" -- "$word"))'
    yield "}"
    yield "complete -o default -F _planner planner"


def _fish(commands: Mapping[str, str], words: Mapping[str, Sequence[argparse.Action]]) -> Iterator[str]:
    """Yield a line for each command, option and value."""
    for name, summary in commands.items():
        yield f"complete -c planner -f -n __fish_use_subcommand -a {name} -d {_quoted(summary)}"
    for name, own in words.items():
        start = f"complete -c planner -n '__fish_seen_subcommand_from {name}'"
        for word in own:
            values = f" -f -a {_quoted(_values(word))}" if word.choices else ""
            names = "".join(f" -l {n[2:]}" if n.startswith("--") else f" -s {n[1:]}" for n in word.option_strings)
            needs = " -r" if names and word.nargs != 0 else ""
            if names or values:
                yield f"{start}{names}{needs}{values} -d {_quoted(word.help or '')}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
