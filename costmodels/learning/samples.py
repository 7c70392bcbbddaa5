"""The measurements of a sweep, and their file for each kind of device."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from costmodels.measured import Measurement, TrainingMeasurement
from graphs.brief import brief
from graphs.documents import read_json
from graphs.errors import InputError
from graphs.files import reading_cached, write_cached

VERSION = 2  # version 1 had no training
READABLE = (1, 2)


@dataclass(frozen=True)
class Probed:
    """Measurements of one probe."""

    pass_bytes: float  # bytes that one pass over the network touches, see `costmodels.learning.features.pass_bytes`
    ops: Mapping[str, Measurement]  # measurements in inference, by the operators' keys, see `costmodels.opkeys.op_keys`
    training: Mapping[str, TrainingMeasurement] = field(default_factory=dict)  # in training; empty for most probes


@dataclass(frozen=True)
class Sweep:
    """Measurements on one kind of device."""

    fingerprint: str  # fingerprint of the hardware and software, as in `costmodels.measured.Profile`
    probes: Mapping[str, Probed]  # measurements by the name of the probe

    __repr__ = brief

    def extended(self, name: str, probed: Probed) -> "Sweep":
        """The sweep with one more probe."""
        return replace(self, probes={**self.probes, name: probed})


def read_sweep(directory: Path, fingerprint: str) -> Sweep | None:
    """The sweep of a fingerprint, or None without a file.

    Raises:
        InputError: if the file is damaged, or has another fingerprint.
    """
    path = sweep_path(directory, fingerprint)
    if not path.exists():
        return None
    document = read_json(path, "sweep")
    with reading_cached("sweep", path, "sweep"):
        if document["version"] not in READABLE or document["fingerprint"] != fingerprint:
            raise InputError(f"version {document['version']}, fingerprint '{document['fingerprint']}'")
        return Sweep(
            fingerprint,
            {
                name: Probed(
                    float(probe["pass_bytes"]),
                    {key: Measurement(*numbers) for key, numbers in probe["ops"].items()},
                    {key: TrainingMeasurement.of(numbers) for key, numbers in probe.get("training", {}).items()},
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
                "ops": {key: m.numbers for key, m in sorted(probed.ops.items())},
                "training": {key: step.numbers for key, step in sorted(probed.training.items())},
            }
            for name, probed in sweep.probes.items()
        },
    }
    write_cached(document, path)
    return path


def sweep_path(directory: Path, fingerprint: str) -> Path:
    """The path of a sweep in the folder of profiles."""
    return directory / f"{fingerprint}.sweep.json"
