"""graph.json: out and in again without a change, and every kind of damage named."""

import json
import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from graphs.common.documents import read_json
from graphs.common.errors import InputError
from graphs.files import (
    graph_from_dict,
    graph_to_dict,
    is_stream,
    read_graph,
    write_bytes,
    write_graph,
    write_text,
)
from graphs.footprint import Backward, Footprint, Gradient, Run
from graphs.ir import Graph, Op, Role, Tensor
from tests.children import ran
from tests.graphs.random_graphs import graphs

GRAPH = Graph(
    name="net",
    ops=(
        Op("conv", "conv2d", ("x", "w"), ("h",), module="features.0", attrs={"stride": (2, (1, None)), "eps": 1e-5}),
        Op(
            "head",
            "fused",
            ("h",),
            ("y",),
            members=(Op("head", "relu", ("h",), ("z",)), Op("tail", "linear", ("z",), ("y",))),
        ),
    ),
    tensors=(
        Tensor("x", (1, 3), "float32", Role.INPUT),
        Tensor("w", (), "int8", Role.PARAMETER),
        Tensor("h", (4,), "float32", Role.ACTIVATION),
        Tensor("z", (4,), "float32", Role.ACTIVATION),
        Tensor("y", (4,), "float32", Role.ACTIVATION),
    ),
    inputs=("x",),
    outputs=("y",),
)


def document() -> dict[str, Any]:
    """GRAPH as it comes out of a file."""
    loaded: dict[str, Any] = json.loads(json.dumps(graph_to_dict(GRAPH)))
    return loaded


def test_the_document_leaves_empty_fields_out() -> None:
    assert document() == {
        "version": 1,
        "name": "net",
        "fingerprint": GRAPH.fingerprint,
        "inputs": ["x"],
        "outputs": ["y"],
        "tensors": [
            ["x", [1, 3], "float32", "input"],
            ["w", [], "int8", "parameter"],
            ["h", [4], "float32", "activation"],
            ["z", [4], "float32", "activation"],
            ["y", [4], "float32", "activation"],
        ],
        "ops": [
            {
                "name": "conv",
                "kind": "conv2d",
                "inputs": ["x", "w"],
                "outputs": ["h"],
                "module": "features.0",
                "attrs": {"stride": [2, [1, None]], "eps": 1e-5},
            },
            {
                "name": "head",
                "kind": "fused",
                "inputs": ["h"],
                "outputs": ["y"],
                "members": [
                    {"name": "head", "kind": "relu", "inputs": ["h"], "outputs": ["z"]},
                    {"name": "tail", "kind": "linear", "inputs": ["z"], "outputs": ["y"]},
                ],
            },
        ],
    }


def test_lists_come_back_as_tuples_all_the_way_down() -> None:
    graph = graph_from_dict(document())
    assert graph == GRAPH
    assert graph.ops[0].attrs["stride"] == (2, (1, None))


def test_footprints_come_back_and_are_no_part_of_the_fingerprint() -> None:
    backward = Backward(("h",), 7, (Gradient("w", "h"), Gradient("x", 12, True)), 5)
    footprints = [Footprint(Run(("x",), 3), Run((16,), 0), backward), Footprint(Run((16,)))]
    ops = tuple(replace(op, footprint=footprint) for op, footprint in zip(GRAPH.ops, footprints, strict=True))
    graph = replace(GRAPH, ops=ops)
    loaded = json.loads(json.dumps(graph_to_dict(graph)))
    assert loaded["ops"][0]["footprint"] == {
        "inference": [["x"], 3],
        "training": [[16], 0],
        "backward": [["h"], 7, [["w", "h", 0], ["x", 12, 1]], 5],
    }
    assert loaded["ops"][1]["footprint"] == {"inference": [[16], 0]}
    assert graph_from_dict(loaded) == graph
    assert graph.fingerprint == GRAPH.fingerprint


@pytest.mark.parametrize(
    "footprint", [{}, {"inference": [[None], 0]}, {"inference": [[1], 0], "backward": [[], 0, [["x"]], 0]}]
)
def test_a_damaged_footprint_is_refused(footprint: object) -> None:
    changed = document()
    changed["ops"][0]["footprint"] = footprint
    assert refused(changed).startswith("the graph is damaged: ")


@pytest.mark.parametrize(
    "footprint",
    [
        {"inference": [[], 0]},
        {"inference": [[1, 2], 0]},
        {"inference": [["y"], 0]},
        {"inference": [[1], -1]},
        {"inference": [[1], 1e308]},
        {"inference": [[1], 0], "training": [[], 0]},
        {"inference": [[1], 0], "backward": [["y"], 0, [], 0]},
        {"inference": [[1], 0], "backward": [[], 0, [["x", "y", 0]], 0]},
    ],
)
@pytest.mark.parametrize("in_member", [False, True])
def test_a_footprint_of_another_operator_is_refused(footprint: object, in_member: bool) -> None:
    changed = document()
    op = changed["ops"][1]["members"][0] if in_member else changed["ops"][0]
    footprint = json.loads(json.dumps(footprint).replace('"y"', '"elsewhere"'))
    op["footprint"] = footprint
    assert (
        refused(changed) == f"the footprint of operator '{op['name']}' does not fit its tensors; import the model again"
    )


@given(graphs())
def test_every_graph_comes_back_and_gives_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, graph: Graph
) -> None:
    first, second = (tmp_path_factory.getbasetemp() / name for name in ("first.json", "second.json"))
    write_graph(graph, first)
    read = read_graph(first)
    assert read == graph
    assert read.fingerprint == graph.fingerprint
    write_graph(read, second)
    assert first.read_bytes() == second.read_bytes()


def test_a_file_is_one_line_of_utf8(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    tensors = (Tensor("größe", (1,), "float32", Role.INPUT),)
    write_graph(Graph("é", (), tensors, ("größe",), ()), path)
    fingerprint = read_graph(path).fingerprint
    assert path.read_text(encoding="utf-8") == (
        f'{{"version":1,"name":"é","fingerprint":"{fingerprint}","inputs":["größe"],"outputs":[],'
        '"tensors":[["größe",[1],"float32","input"]],"ops":[]}\n'
    )


# --- damage ----------------------------------------------------------------------------------------------------------


def refused(changed: dict[str, Any]) -> str:
    with pytest.raises(InputError) as error:
        graph_from_dict(changed)
    return str(error.value)


@pytest.mark.parametrize("version", [2, 3, 0, "1", None, True])
def test_another_version_is_refused(version: object) -> None:
    message = f"the graph has the version {version!r}, this planner reads 1; import the model again"
    assert refused(document() | {"version": version}) == message


def test_a_document_without_a_version_is_refused() -> None:
    assert refused({}) == "the graph has the version None, this planner reads 1; import the model again"


@pytest.mark.parametrize("key", ["name", "ops", "tensors", "inputs", "outputs"])
def test_a_missing_field_is_named(key: str) -> None:
    changed = document()
    del changed[key]
    assert refused(changed) == f"the graph is damaged: KeyError('{key}'); import the model again"


def test_an_unknown_role_is_named() -> None:
    changed = document()
    changed["tensors"][1][3] = "weight"
    assert refused(changed) == (
        "the graph is damaged: ValueError(\"'weight' is not a valid Role\"); import the model again"
    )


def test_a_graph_that_does_not_hold_together_says_so_itself() -> None:
    changed = document()
    changed["ops"].reverse()
    assert refused(changed) == "operator 'head' reads the tensor 'h' before any operator has written it"


def test_an_edit_by_hand_is_found_by_the_fingerprint() -> None:
    changed = document()
    changed["outputs"] = ["h"]
    found = replace(GRAPH, outputs=("h",)).fingerprint
    assert refused(changed) == (
        f"graph 'net' was changed by hand: its fingerprint is {found}, "
        f"the file says '{GRAPH.fingerprint}'; import the model again"
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


@given(st.data())
def test_whatever_is_changed_gives_an_input_error_or_a_graph(data: st.DataObject) -> None:
    """Any part of the document replaced by any JSON: never another exception than InputError."""
    changed = document()
    inner: Any = changed
    while True:
        key = data.draw(st.sampled_from(sorted(inner)) if isinstance(inner, dict) else st.integers(0, len(inner) - 1))
        if isinstance(inner[key], dict | list) and inner[key] and data.draw(st.booleans()):
            inner = inner[key]
        else:
            break
    new = data.draw(JSON)
    assume(key != "attrs" or isinstance(new, dict))
    inner[key] = new
    with suppress(InputError):
        graph_from_dict(changed)


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        read_graph(tmp_path / "none.json")
    assert str(error.value) == (
        f"cannot read the graph '{tmp_path / 'none.json'}': No such file or directory; check the path"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"{",
            "is not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)); write it again",
        ),
        (b"", "is not JSON (Expecting value: line 1 column 1 (char 0)); write it again"),
        (
            b"\xff",
            "is no text in UTF-8 (byte 0 is 0xff); save it as UTF-8",
        ),
        (b"[1]", "holds a list, not an object; write it again"),
        (b"null", "holds a NoneType, not an object; write it again"),
    ],
)
def test_what_is_no_object_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read_json(path, "plan")
    assert str(error.value) == f"the plan '{path}' {message}"


def test_a_text_replaces_what_was_there_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_text("old, and longer", path)
    write_text("größe", path)
    assert path.read_bytes() == "größe".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none" / "plan.json"
    with pytest.raises(InputError) as error:
        write_text("text", path)
    assert str(error.value) == f"cannot write '{path}': No such file or directory; choose another place"


def test_a_text_that_cannot_be_put_in_place_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.mkdir()
    with pytest.raises(InputError) as error:
        write_text("text", path)
    assert str(error.value) == f"cannot write '{path}': Is a directory; choose another place"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_file_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_bytes(b"through", pipe)
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert list(tmp_path.iterdir()) == [pipe]
    assert pipe.is_fifo()
    write_text("nowhere", Path("/dev/null"))
    assert Path("/dev/null").is_char_device()


def test_a_folder_is_not_written_to(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write '.*': Is a directory; choose another place"):
        write_text("text", tmp_path)


def test_standard_output_is_no_file_even_where_it_is_one(tmp_path: Path) -> None:
    assert is_stream(Path("/dev/stdout"))
    assert not is_stream(tmp_path / "new")
    code = "from pathlib import Path; from graphs.files import write_text; write_text('told', Path('/dev/stdout'))"
    with (tmp_path / "out").open("w") as out:
        ran([sys.executable, "-c", code], stdout=out, cwd=Path(__file__).parents[2])
    assert (tmp_path / "out").read_text() == "told"
    assert Path("/dev/stdout").is_symlink()
