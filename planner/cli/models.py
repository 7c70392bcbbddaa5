"""Arguments that several commands share."""

import argparse


def declare_model(parser: argparse.ArgumentParser, optional: bool = False) -> None:
    """MODEL and --batch."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?" if optional else None,
        help="a .onnx, a .pt2, package.module:factory, or a transformers config.json",
    )
    parser.add_argument("--batch", type=at_least_one, metavar="N", help="samples in one micro-batch (the model's own)")


def at_least_one(text: str) -> int:
    """A whole number from 1.

    Raises:
        ArgumentTypeError: for anything else.
    """
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of 1 or more")
    return number


def share(text: str) -> float:
    """A number from 0 to below 1.

    Raises:
        ArgumentTypeError: for anything else.
    """
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 0 to below 1, such as 0.01")
    return number


def positive_seconds(text: str) -> float:
    """Seconds above 0.

    Raises:
        ArgumentTypeError: for anything else.
    """
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds above 0")
    return number
