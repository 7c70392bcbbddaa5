"""Shards: the files among which the weights of one model are divided."""

import re
from pathlib import Path

from graphs.common.errors import InputError


def all_shards(path: Path, pattern: re.Pattern[str], called: str) -> list[Path]:
    """Return all files of a model, one of which is given; a file whose name does not fit the pattern is alone.

    Args:
        path: ``NAME-00001-of-00003`` and a suffix.
        pattern: of such a name, with groups for the stem, the number and the count.
        called: the word for the files in a message.

    Raises:
        InputError: if a file is missing.
    """
    match = pattern.fullmatch(path.name)
    if match is None:
        return [path]
    stem, digits, count = match.groups()
    numbers = (f"{number:0{len(digits)}d}" for number in range(1, int(count) + 1))
    paths = [path.with_name(f"{stem}-{number}-of-{count}{path.suffix}") for number in numbers]
    missing = [shard.name for shard in paths if not shard.exists()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(
            f"'{path}' is one of {int(count)} {called}, and '{missing[0]}'{more} is not in its folder; put all there"
        )
    return paths
