"""What the sweep measured: operators of small networks made for it, one file for each kind of device."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from costmodels.measured import Measurement, TrainingMeasurement
from graphs.brief import brief
from graphs.documents import read_json
from graphs.errors import InputError
from graphs.files import reading_cached, write_cached

VERSION = 2  # 1 had no training
READABLE = (1, 2)


@dataclass(frozen=True)
class Probed:
    """Measurements of one small network.

    Attributes:
        pass_bytes: what one pass over it touches, see `costmodels.learning.features.pass_bytes`.
        ops: inference, by the key of the operator, see `costmodels.opkeys.op_keys`.
        training: by the key of the operator in training, see `costmodels.opkeys.training_keys`; few networks have it.
    """

    pass_bytes: float
    ops: Mapping[str, Measurement]
    training: Mapping[str, TrainingMeasurement] = field(default_factory=dict)


@dataclass(frozen=True)
class Sweep:
    """Measurements on one kind of device.

    Attributes:
        fingerprint: of its hardware and software, as in `costmodels.measured.Profile`.
        probes: by the name of the network.
    """

    fingerprint: str
    probes: Mapping[str, Probed]

    __repr__ = brief

    def extended(self, name: str, probed: Probed) -> "Sweep":
        """With one more network."""
        return replace(self, probes={**self.probes, name: probed})


def read_sweep(directory: Path, fingerprint: str) -> Sweep | None:
    """The sweep of a fingerprint, or None if there is none.

    Raises:
        InputError: if the file is damaged, or is that of another fingerprint.
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
    """Write a sweep where `read_sweep` finds it; a reader sees the old file or the new one, never half of one.

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
    """Beside the profile of that fingerprint."""
    return directory / f"{fingerprint}.sweep.json"
