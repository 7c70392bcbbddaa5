"""What scripts share that measure networks of `examples.networks` in turns."""

import argparse

from examples.networks import NETWORKS
from graphs.importers.load import load_program
from graphs.program.program import Program
from tests.benchmarks.bars import declare


def program_of(name: str, batch: int | None = None, training: bool = False) -> Program:
    """A network by its name in `examples.networks` or as MODULE:FACTORY, imported."""
    return load_program(name if ":" in name else f"examples.networks:{name}", batch, training)


def parser_of(about: str | None, default: str, rounds: int) -> argparse.ArgumentParser:
    """Networks, ``--rounds``, ``--quick`` and ``--json``.

    Args:
        about: the script's docstring.
        default: which networks are measured if none is named, in words.
        rounds: how many there are unless somebody says.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", choices=[[], *NETWORKS], metavar="NETWORK", help=f"default: {default}")
    parser.add_argument("--rounds", type=int, default=rounds, help="turns of each contender")
    declare(parser)
    return parser
