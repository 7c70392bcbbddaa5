"""Profiles in files: one for each kind of device, named by its fingerprint."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from costmodels.measured import Measurement, Profile, TrainingMeasurement
from graphs.documents import read_json
from graphs.errors import InputError
from graphs.files import reading_cached, write_cached

VERSION = 5  # 1 had no training, 2 knew devices alone only, 3 inference alone under contention
READABLE = (1, 2, 3, 4, 5)


def read_profile(directory: Path, fingerprint: str) -> Profile | None:
    """The profile of a fingerprint, or None if there is none.

    Raises:
        InputError: if the file is damaged, or is that of another fingerprint.
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
            int(count): {key: Measurement(*numbers) for key, numbers in known.items()}
            for count, known in (document[words[0]].items() if document["version"] > 2 else ())
        }
        trained = document[words[1]].items() if document["version"] > 3 else ()
        training_contended = {int(count): _steps(known) for count, known in trained}
        return Profile(fingerprint, dict(document["machine"]), ops, training, contended, training_contended)


def add_profile(directory: Path, newer: Profile) -> None:
    """Put measurements beside those that are there; where they have the same key, the newer one stays.

    Raises:
        InputError: as `read_profile` and `write_profile`.
    """
    known = read_profile(directory, newer.fingerprint)
    write_profile(directory, known.updated(newer) if known else newer)


def write_profile(directory: Path, profile: Profile) -> Path:
    """Write a profile where `read_profile` finds it; a reader sees the old file or the new one, never half of one.

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
        "contended": {str(count): _numbers(known) for count, known in sorted(profile.contended.items())},
        "training_contended": {
            str(count): _numbers(known) for count, known in sorted(profile.training_contended.items())
        },
    }
    write_cached(document, path)
    return path


def _steps(document: Mapping[str, Sequence[Any]]) -> dict[str, TrainingMeasurement]:
    return {key: TrainingMeasurement.of(numbers) for key, numbers in document.items()}


def _numbers(known: Mapping[str, Measurement | TrainingMeasurement]) -> dict[str, list[Any]]:
    return {key: one.numbers for key, one in sorted(known.items())}


def _path(directory: Path, fingerprint: str) -> Path:
    if not fingerprint.isalnum():
        raise InputError(f"the fingerprint '{fingerprint}' is none; it is made of letters and digits; calibrate again")
    return directory / f"{fingerprint}.json"
