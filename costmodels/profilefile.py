"""Reads and writes files of profiles and of sweeps, one of each for a kind of device, named by its fingerprint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from costmodels.measured import Measurement, Profile, TrainingMeasurement
from costmodels.operators.pace import usual_spread
from graphs.common.brief import Brief
from graphs.common.documents import read_json
from graphs.common.errors import InputError
from graphs.files import reading_cached, write_cached

VERSION = 1  # of profiles and sweeps; those of another version are measured again


def read_profile(directory: Path, fingerprint: str) -> Profile | None:
    """The profile of a fingerprint, or None without a file of this version.

    Raises:
        InputError: if the file is damaged, or has another fingerprint.
    """
    path = _path(directory, fingerprint)
    if not path.exists():
        return None
    with reading_cached("profile", path, "calibrate"):
        document = read_json(path, "profile")
        if not _is_current(document, fingerprint):
            return None
        return Profile(
            fingerprint=fingerprint,
            machine=dict(document["machine"]),
            ops=_measured(document["ops"]),
            training=_steps(document["training"]),
            contended={int(count): _measured(ops) for count, ops in document["contended"].items()},
            training_contended={int(count): _steps(ops) for count, ops in document["training_contended"].items()},
            copies={int(count): _measured(ops) for count, ops in document["copies"].items()},
            pace=_paces(document["pace"]),
            moments={int(at): _paces(figures) for at, figures in document["moments"].items()},
        )


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
        "copies": {str(count): _numbers(ops) for count, ops in sorted(profile.copies.items())},
        "pace": dict(profile.pace),
        "moments": {str(at): dict(pace) for at, pace in sorted(profile.moments.items())},
    }
    write_cached(document, path)
    return path


def _is_current(document: Mapping[str, Any], fingerprint: str) -> bool:
    """Return whether a file has the version that is read; raise ValueError if it has another fingerprint."""
    if document["fingerprint"] != fingerprint:
        raise ValueError(f"fingerprint '{document['fingerprint']}'")
    return bool(document["version"] == VERSION)


def _measured(document: Mapping[str, Sequence[Any]]) -> dict[str, Measurement]:
    return {key: Measurement(*numbers) for key, numbers in document.items()}


def _paces(document: Mapping[str, float]) -> dict[str, float]:
    for name in document.keys():  # noqa: SIM118  # only a mapping has keys
        usual_spread(name)  # a KeyError if no figure has that name
    return dict(document)


def _steps(document: Mapping[str, Sequence[Any]]) -> dict[str, TrainingMeasurement]:
    return {key: TrainingMeasurement.of(numbers) for key, numbers in document.items()}


def _numbers(measured: Mapping[str, Measurement | TrainingMeasurement]) -> dict[str, list[Any]]:
    return {key: measurement.numbers for key, measurement in sorted(measured.items())}


def _path(directory: Path, fingerprint: str) -> Path:
    if not fingerprint.isalnum():
        raise InputError(f"the fingerprint '{fingerprint}' is none; it is made of letters and digits; calibrate again")
    return directory / f"{fingerprint}.json"


@dataclass(frozen=True)
class ProbeMeasurement:
    """Measurements of one probe."""

    pass_bytes: float  # bytes that one pass over the network touches, see `costmodels.learning.features.pass_bytes`
    ops: Mapping[
        str, Measurement
    ]  # measurements in inference, by the operators' keys, see `costmodels.operators.keys.op_keys`
    training: Mapping[str, TrainingMeasurement] = field(default_factory=dict)  # in training; empty for most probes


@dataclass(frozen=True)
class Sweep(Brief):
    """Measurements on one kind of device."""

    fingerprint: str  # fingerprint of the hardware and software, as in `costmodels.measured.Profile`
    probes: Mapping[str, ProbeMeasurement]  # measurements by the name of the probe

    def extended(self, name: str, probed: ProbeMeasurement) -> "Sweep":
        """The sweep with one more probe."""
        return replace(self, probes={**self.probes, name: probed})


def read_sweep(directory: Path, fingerprint: str) -> Sweep | None:
    """The sweep of a fingerprint, or None without a file of this version.

    Raises:
        InputError: if the file is damaged, or has another fingerprint.
    """
    path = sweep_path(directory, fingerprint)
    if not path.exists():
        return None
    document = read_json(path, "sweep")
    with reading_cached("sweep", path, "sweep"):
        if not _is_current(document, fingerprint):
            return None
        return Sweep(
            fingerprint,
            {
                name: ProbeMeasurement(
                    float(probe["pass_bytes"]),
                    _measured(probe["ops"]),
                    _steps(probe["training"]),
                )
                for name, probe in document["probes"].items()
            },
        )


def write_sweep(directory: Path, sweep: Sweep) -> Path:
    """Write the file of a sweep atomically.

    Raises:
        InputError: if the directory cannot be written.
    """
    path = sweep_path(directory, sweep.fingerprint)
    document = {
        "version": VERSION,
        "fingerprint": sweep.fingerprint,
        "probes": {
            name: {
                "pass_bytes": probed.pass_bytes,
                "ops": _numbers(probed.ops),
                "training": _numbers(probed.training),
            }
            for name, probed in sweep.probes.items()
        },
    }
    write_cached(document, path)
    return path


def sweep_path(directory: Path, fingerprint: str) -> Path:
    """The path of a sweep in the folder of profiles."""
    return directory / f"{fingerprint}.sweep.json"
