"""What calibration measured: one file for each kind of device, named by a fingerprint of its hardware and software."""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from costmodels.views import STRIDING_KINDS, bases, operation
from graphs.errors import InputError
from graphs.files import read_json
from graphs.ir import Graph, Op

VERSION = 1


@dataclass(frozen=True, slots=True)
class Measurement:
    """Times of one operator, or of several equal ones.

    Attributes:
        seconds: median.
        spread: distance of the quartiles as a share of the median.
        count: how many times it ran.
    """

    seconds: float
    spread: float
    count: int

    def __post_init__(self) -> None:
        if not (isfinite(self.seconds) and self.seconds >= 0 and self.spread >= 0 and self.count >= 1):
            raise InputError(f"{self} is no measurement; seconds and spread are 0 or more, count is 1 or more")


@dataclass(frozen=True)
class Profile:
    """Measurements on one kind of device.

    Attributes:
        fingerprint: of the hardware and software; changes when either does.
        machine: what the fingerprint stands for, for people.
        ops: by the key of the operator, see `op_keys`.
    """

    fingerprint: str
    machine: Mapping[str, str]
    ops: Mapping[str, Measurement]

    def updated(self, newer: "Profile") -> "Profile":
        """Both; where they have the same key, the newer measurement.

        Raises:
            InputError: if they are of different fingerprints.
        """
        if newer.fingerprint != self.fingerprint:
            raise InputError(
                f"profiles of different machines do not mix: '{self.fingerprint}' and '{newer.fingerprint}'; "
                "calibrate on the machine that will run the plan"
            )
        return Profile(self.fingerprint, newer.machine, {**self.ops, **newer.ops})


def op_keys(graph: Graph) -> tuple[str, ...]:
    """What each operator's time depends on: operators with the same key, in whatever network, take the same time.

    That is kind, shapes and dtypes of inputs and outputs, and attributes. Behind an input stand the views that it was
    seen through, since they decide about its strides::

        aten.add.Tensor(float32[1,768], float32[1,768]<select)->float32[1,768]{"alpha":2}
    """
    base = bases(graph)
    seen_through: dict[str, str] = {}

    def described(name: str) -> str:
        tensor = graph.tensor[name]
        return f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"

    def key(op: Op) -> str:
        inputs = ", ".join(described(name) + seen_through.get(name, "") for name in op.inputs)
        outputs = ", ".join(described(name) for name in op.outputs)
        attrs = json.dumps(dict(sorted(op.attrs.items())), separators=(",", ":")) if op.attrs else ""
        return f"{op.kind}({inputs})->{outputs}{attrs}"

    keys = []
    for op in graph.ops:
        keys.append(key(op))
        name = operation(op.kind)
        for output in op.outputs:
            if output in base:  # a view, so it has an input
                own = f"<{name.removeprefix('aten.')}" if name in STRIDING_KINDS else ""
                seen_through[output] = own + seen_through.get(op.inputs[0], "")
    return tuple(keys)


def op_key(graph: Graph, op: Op) -> str:
    """The key of one operator; `op_keys` is faster for all."""
    return op_keys(graph)[graph.index[op.name]]


def read_profile(directory: Path, fingerprint: str) -> Profile | None:
    """The profile of a fingerprint, or None if there is none.

    Raises:
        InputError: if the file is damaged, or is that of another fingerprint.
    """
    path = _path(directory, fingerprint)
    if not path.exists():
        return None
    document = read_json(path, "profile")
    try:
        if document["version"] != VERSION or document["fingerprint"] != fingerprint:
            raise InputError(f"version {document['version']}, fingerprint '{document['fingerprint']}'")
        ops = {key: Measurement(*numbers) for key, numbers in document["ops"].items()}
        return Profile(fingerprint, dict(document["machine"]), ops)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"the profile '{path}' is damaged or foreign ({error}); delete it and calibrate again"
        ) from error


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
        "ops": {key: [m.seconds, m.spread, m.count] for key, m in sorted(profile.ops.items())},
    }
    try:
        _write_atomically(path, document)
    except OSError as error:
        raise InputError(
            f"cannot write the profile '{path}': {error.strerror}; choose another directory for profiles"
        ) from error
    return path


def _path(directory: Path, fingerprint: str) -> Path:
    if not fingerprint.isalnum():
        raise InputError(f"the fingerprint '{fingerprint}' is none; it is made of letters and digits; calibrate again")
    return directory / f"{fingerprint}.json"


def _write_atomically(path: Path, document: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.write("\n")
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
