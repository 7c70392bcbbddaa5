"""Reader: sharding programs from JSON.

::

    {"ops": [{"id": 0, "op": "parameter", "inputs": [], "shape": [1024, 128]}, ...
             {"id": 4, "op": "dot", "inputs": [0, 2], "shape": [1024, 128], "batch": [[], []], "contract": [1, 0]}],
     "ties": [[2, 14]],
     "cases": [{"mesh": [4, 8], "alpha": [1, 1], "beta": [1, 0.01], "all_gather_price": 1e5,
                "must_split": [{"op": 4, "axis": 0, "mesh_axis": 0}]}]}

Operators come in a topological order; their values take 4 bytes each. ``axes`` belongs to broadcast, transpose and
reduce. The operators of a tie must have equal specs. ``all_gather_price`` (of every all-gather, whatever its size) and
``must_split`` may be left out; further keys are ignored.

Source: the programs in the tests of Alpa's solver (Zheng et al., OSDI 2022), ``playground/auto_sharding_solver`` of
https://github.com/alpa-projects/alpa.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from graphs.common.errors import InputError, nearest
from graphs.common.json_object import JsonObject
from planner.literature.strategies.program import KINDS, MeshCase, MeshSplit, ShardingProgram, TensorOp
from planner.literature.strategies.shapes import check_shape


def sharding_program(document: Mapping[str, Any]) -> ShardingProgram:
    """Return a sharding program from the content of its JSON file.

    Raises:
        InputError: if a field is missing or of the wrong kind, an operator is unknown, comes before one that it reads,
            or has a shape that does not follow from its inputs.
    """
    top = JsonObject("the file", document)
    ops: list[TensorOp] = []
    place: dict[int, int] = {}
    for position, content in enumerate(top.records("ops")):
        op = _op(position, content, ops, place)
        if op.key in place:
            raise InputError(f"two operators have the id {op.key}; give each its own")
        place[op.key] = position
        check_shape(op, [ops[i] for i in op.inputs])
        ops.append(op)
    if not ops:
        raise InputError("there are no operators; list at least one in ops")
    ties = [_tie(tie, place, ops) for tie in (top.records("ties") if top.has("ties") else ())]
    cases = _cases(top, place, ops)
    return ShardingProgram(tuple(ops), tuple(ties), tuple(cases))


def _op(position: int, content: Any, ops: Sequence[TensorOp], place: Mapping[int, int]) -> TensorOp:
    """Return an operator; the operators that it reads come before it."""
    key = JsonObject(f"operator number {position + 1} of the list", content).whole("id")
    kind = JsonObject(f"operator {key}", content).label("op")
    record = JsonObject(f"operator {key} ({kind})", content)
    if kind not in KINDS:
        known = ", ".join(sorted(KINDS))
        raise InputError(f"operator {key} has op = {kind!r}; it must be one of {known}{nearest(str(kind), KINDS)}")
    inputs = []
    for read in record.wholes("inputs"):
        if read not in place:
            raise InputError(
                f"{record.where} reads operator {read}, which does not come before it; list operators in a topological "
                "order, without circles"
            )
        if ops[place[read]].kind == "tuple":
            raise InputError(f"{record.where} reads operator {read}, which is a tuple; let it read the tuple's inputs")
        inputs.append(place[read])
    batch: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    contract = (0, 0)
    if kind == "dot":
        left, right = _batch(record)
        batch = left, right
        one, other = record.wholes("contract", 2)
        contract = one, other
    axes = record.wholes("axes") if kind in ("broadcast", "transpose", "reduce") else ()
    return TensorOp(record.where, key, str(kind), tuple(inputs), record.wholes("shape", least=1), axes, batch, contract)


def _batch(record: JsonObject) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the batch axes of the inputs of a dot."""
    if not record.has("batch"):
        return (), ()
    sides = record.records("batch")
    if len(sides) != 2:
        raise InputError(f"{record.where} has {len(sides)} lists in batch; give one for each of its two inputs")
    left, right = (JsonObject(record.where, {"batch": side}).wholes("batch") for side in sides)
    return left, right


def _tie(tie: Any, place: Mapping[int, int], ops: Sequence[TensorOp]) -> tuple[int, int]:
    """Return the positions of two operators whose specs must be equal."""
    one, other = (_known(key, "a tie", place) for key in JsonObject("a tie", {"operators": tie}).wholes("operators", 2))
    if ops[one].shape != ops[other].shape:
        shapes = f"{list(ops[one].shape)} and {list(ops[other].shape)}"
        raise InputError(
            f"a tie joins {ops[one].name} and {ops[other].name} of shapes {shapes}; give them the same shape"
        )
    return one, other


def _known(key: int, where: str, place: Mapping[int, int]) -> int:
    if key not in place:
        raise InputError(f"{where} names operator {key}, which does not exist; list it in ops")
    return place[key]


def _cases(top: JsonObject, place: Mapping[int, int], ops: Sequence[TensorOp]) -> list[MeshCase]:
    """Return the meshes; the second mesh of a size is called "4x8 (2)"."""
    cases: list[MeshCase] = []
    for position, content in enumerate(top.records("cases")):
        record = JsonObject(f"case number {position + 1} of the list", content)
        n0, n1 = record.wholes("mesh", 2, least=1)
        times = sum(case.mesh == (n0, n1) for case in cases)
        name = f"{n0}x{n1} ({times + 1})" if times else f"{n0}x{n1}"
        record = JsonObject(f"the case of mesh {name}", content)
        must: dict[int, MeshSplit] = {}
        for wish in record.records("must_split") if record.has("must_split") else ():
            wanted = JsonObject(f"must_split of mesh {name}", wish)
            op = _known(wanted.count("op"), wanted.where, place)
            must[op] = MeshSplit(wanted.count("axis"), wanted.count("mesh_axis"))
            _check_must_split(wanted.where, ops[op], must[op])
        gather = record.number("all_gather_price", 0.0)
        cases.append(MeshCase(name, (n0, n1), record.numbers("alpha", 2), record.numbers("beta", 2), gather, must))
    if not cases:
        raise InputError("there are no cases; list at least one mesh with alpha and beta in cases")
    return cases


def _check_must_split(where: str, op: TensorOp, split: MeshSplit) -> None:
    if op.kind != "dot":
        raise InputError(f"{where} names {op.name}; only a dot can be asked to split an axis")
    if split.axis >= len(op.shape) or split.mesh_axis > 1:
        most = len(op.shape) - 1
        raise InputError(
            f"{where} asks {op.name} for axis {split.axis} on mesh axis {split.mesh_axis}; axes go from 0 to {most}, "
            "mesh axes from 0 to 1"
        )
