"""Reads and writes files of profiles, one for each kind of device, named by its fingerprint."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from costmodels.measured import Measurement, Profile, TrainingMeasurement
from graphs.documents import read_json
from graphs.errors import InputError
from graphs.files import reading_cached, write_cached

VERSION = 6  # 1 had no training, 2 no contended times, 3 none in training, 4 other words, 5 no pace
READABLE = (1, 2, 3, 4, 5, 6)


def read_profile(directory: Path, fingerprint: str) -> Profile | None:
    """The profile of a fingerprint, or None without a file.

    Raises:
        InputError: if the file is damaged, or has another fingerprint.
    """
    path = _path(directory, fingerprint)
    if not path.exists():
        return None
    with reading_cached("profile", path, "calibrate"):
        document = read_json(path, "profile")
        if document["version"] not in READABLE or document["fingerprint"] != fingerprint:
            raise InputError(f"version {document['version']}, fingerprint '{document['fingerprint']}'")
        ops = {key: Measurement(*numbers) for key, numbers in document["ops"].items()}
        training = _steps(document["training"]) if document["version"] > 1 else {}
        words = ("beside", "training_beside") if document["version"] < 5 else ("contended", "training_contended")
        contended = {
            int(count): {key: Measurement(*numbers) for key, numbers in ops_of_count.items()}
            for count, ops_of_count in (document[words[0]].items() if document["version"] > 2 else ())
        }
        trained = document[words[1]].items() if document["version"] > 3 else ()
        training_contended = {int(count): _steps(steps) for count, steps in trained}
        pace = {str(kind): float(s) for kind, s in document["pace"].items()} if document["version"] > 5 else {}
        return Profile(fingerprint, dict(document["machine"]), ops, training, contended, training_contended, pace)


def add_profile(directory: Path, newer: Profile) -> None:
    """Add measurements to those of the file; for keys of both, the newer measurement stays.

    Raises:
        InputError: as `read_profile` and `write_profile`.
    """
    older = read_profile(directory, newer.fingerprint)
    write_profile(directory, older.updated(newer) if older else newer)


def write_profile(directory: Path, profile: Profile) -> Path:
    """Write the file of a profile atomically.

    Raises:
        InputError: if the directory cannot be written.
    """
    path = _path(directory, profile.fingerprint)
    document = {
        "version": VERSION,
        "fingerprint": profile.fingerprint,
        "machine": dict(profile.machine),
        "ops": _numbers(profile.ops),
        "training": _numbers(profile.training),
        "contended": {str(count): _numbers(ops) for count, ops in sorted(profile.contended.items())},
        "training_contended": {
            str(count): _numbers(steps) for count, steps in sorted(profile.training_contended.items())
        },
        "pace": dict(profile.pace),
    }
    write_cached(document, path)
    return path


def _steps(document: Mapping[str, Sequence[Any]]) -> dict[str, TrainingMeasurement]:
    return {key: TrainingMeasurement.of(numbers) for key, numbers in document.items()}


def _numbers(measured: Mapping[str, Measurement | TrainingMeasurement]) -> dict[str, list[Any]]:
    return {key: measurement.numbers for key, measurement in sorted(measured.items())}


def _path(directory: Path, fingerprint: str) -> Path:
    if not fingerprint.isalnum():
        raise InputError(f"the fingerprint '{fingerprint}' is none; it is made of letters and digits; calibrate again")
    return directory / f"{fingerprint}.json"
