"""Profiles: keys, files, and what is refused."""

import json
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.measured import (
    Measurement,
    Noise,
    Profile,
    Step,
    add_profile,
    noisy,
    op_keys,
    read_profile,
    training_keys,
    write_profile,
)
from graphs.errors import InputError
from graphs.ir import Attr
from tests.costmodels.sketches import sketch

RELU = Measurement(2e-6, 0.25, 7)
STEP = Step(Measurement(3e-6, 0.5, 7), Measurement(6e-6, 0.125, 8))
BESIDE = {2: {"aten.relu": Measurement(3e-6, 0.125, 7)}, 4: {"aten.relu": Measurement(5e-6, 0.125, 7)}}
TRAINING_BESIDE = {2: {"aten.relu+grad": Step(Measurement(4e-6, 0, 3), Measurement(14e-6, 0, 3))}}
PROFILE = Profile(
    "abc123", {"model name": "Z80"}, {"aten.relu": RELU}, {"aten.relu+grad": STEP}, BESIDE, TRAINING_BESIDE
)


def test_a_key_says_what_the_time_depends_on() -> None:
    graph = sketch(
        {"x": (4, 5), "w": (5, 5), "t": (5, 5), "a": (4, 5), "c": ((4, 5), "float64")},
        [
            ("aten.t.default", "w", "t"),
            ("aten.mm.default", "x t", "a"),
            ("aten.to.dtype", "a", "c", {"dtype": "float64", "copy": True}),
        ],
        "c",
    )
    assert op_keys(graph) == (
        "aten.t.default(float32[5,5])->float32[5,5]",
        "aten.mm.default(float32[4,5], float32[5,5]<t)->float32[4,5]",
        'aten.to.dtype(float32[4,5])->float64[4,5]{"copy":true,"dtype":"float64"}',
    )


def relu_key(shape: tuple[int, ...] = (4,), dtype: str = "float32", attrs: dict[str, Attr] | None = None) -> str:
    shapes = {"x": (shape, dtype), "a": (shape, dtype)}
    return op_keys(sketch(shapes, [("aten.relu.default", "x", "a", attrs or {})]))[0]


def test_shape_dtype_and_attributes_make_another_key_but_names_do_not() -> None:
    keys = {relu_key(), relu_key((2, 2)), relu_key(dtype="int8"), relu_key(attrs={"a": 1}), relu_key(attrs={"a": 2})}
    assert len(keys) == 5
    assert relu_key(attrs={"a": 1, "b": 2}) == relu_key(attrs={"b": 2, "a": 1})
    graph = sketch({"w": (4,), "a": (4,)}, [("aten.relu.default", "w", "a")])  # a parameter is read like an input
    assert op_keys(graph)[0] == relu_key()


def test_the_views_on_the_way_count_if_they_change_strides() -> None:
    graph = sketch(
        {"x": (4, 6), "t": (6, 4), "u": (1, 6, 4), "s": (1, 6, 2), "a": (1, 6, 2), "r": (12,), "c": (12,)},
        [
            ("aten.t.default", "x", "t"),
            ("aten.unsqueeze.default", "t", "u"),  # changes none
            ("aten.slice.Tensor", "u", "s"),
            ("aten.relu.default", "s", "a"),
            ("aten.reshape.default", "s", "r"),  # copies
            ("aten.relu.default", "r", "c"),
        ],
    )
    assert op_keys(graph)[3] == "aten.relu.default(float32[1,6,2]<slice<t)->float32[1,6,2]"
    assert op_keys(graph)[5] == "aten.relu.default(float32[12])->float32[12]"


def test_a_profile_comes_back_from_its_file(tmp_path: Path) -> None:
    path = write_profile(tmp_path / "cache", PROFILE)
    assert path == tmp_path / "cache" / "abc123.json"
    assert read_profile(tmp_path / "cache", "abc123") == PROFILE
    assert [file.name for file in path.parent.iterdir()] == ["abc123.json"]  # nothing is left beside it


def test_no_profile_is_none(tmp_path: Path) -> None:
    assert read_profile(tmp_path, "abc123") is None


@given(seconds=st.floats(0, 1e9), spread=st.floats(0, 1e9), count=st.integers(1, 10**9), key=st.text(max_size=9))
def test_numbers_come_back_to_the_last_digit(
    tmp_path_factory: pytest.TempPathFactory, seconds: float, spread: float, count: int, key: str
) -> None:
    directory = tmp_path_factory.mktemp("cache")
    profile = Profile("f", {}, {key: Measurement(seconds, spread, count)})
    write_profile(directory, profile)
    assert read_profile(directory, "f") == profile


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_profile(tmp_path, PROFILE)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError) as error:
        write_profile(tmp_path, Profile("abc123", {}, {}))
    assert str(error.value) == (
        f"cannot write '{tmp_path / 'abc123.json'}' into the cache: No space left on device; "
        "set PLANNER_CACHE to another folder"
    )
    assert read_profile(tmp_path, "abc123") == PROFILE
    assert [file.name for file in tmp_path.iterdir()] == ["abc123.json"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"version": 9, "fingerprint": "abc123"}', "version 9, fingerprint 'abc123'"),
        ('{"version": 1, "fingerprint": "other"}', "version 1, fingerprint 'other'"),
        ("{}", "'version'"),
        ('{"version": 1, "fingerprint": "abc123", "ops": [], "machine": {}}', "'list' object has no attribute 'items'"),
        ('{"version": 1, "fingerprint": "abc123", "ops": {"k": [1]}, "machine": {}}', "Measurement.__init__() missing"),
        ('{"version": 1, "fingerprint": "abc123", "ops": {"k": [-1, 0, 1]}, "machine": {}}', "Measurement(seconds=-1,"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "abc123.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_profile(tmp_path, "abc123")
    assert str(error.value).startswith(f"the profile '{path}' is damaged or foreign ({reason}")
    assert str(error.value).endswith("); delete it and calibrate again")


def test_half_a_file_is_refused(tmp_path: Path) -> None:
    path = write_profile(tmp_path, PROFILE)
    path.write_text(path.read_text(encoding="utf-8")[:40], encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_profile(tmp_path, "abc123")
    assert str(error.value).startswith(f"the profile '{path}' is damaged or foreign (the profile '{path}' is not JSON")
    assert str(error.value).endswith("); delete it and calibrate again")


def test_a_file_of_version_1_has_no_training(tmp_path: Path) -> None:
    content = {"version": 1, "fingerprint": "abc123", "machine": {}, "ops": {"k": [1.0, 0.5, 3]}}
    (tmp_path / "abc123.json").write_text(json.dumps(content), encoding="utf-8")
    assert read_profile(tmp_path, "abc123") == Profile("abc123", {}, {"k": Measurement(1.0, 0.5, 3)}, {})


def test_a_file_of_version_2_knows_devices_alone(tmp_path: Path) -> None:
    content = {"version": 2, "fingerprint": "abc123", "machine": {}, "ops": {"k": [1.0, 0.5, 3]}, "training": {}}
    (tmp_path / "abc123.json").write_text(json.dumps(content), encoding="utf-8")
    assert read_profile(tmp_path, "abc123") == Profile("abc123", {}, {"k": Measurement(1.0, 0.5, 3)}, {}, {})


def test_a_file_of_version_3_knows_company_in_inference(tmp_path: Path) -> None:
    path = write_profile(tmp_path, PROFILE)
    document = json.loads(path.read_text()) | {"version": 3}
    del document["training_beside"]
    path.write_text(json.dumps(document))
    assert read_profile(tmp_path, "abc123") == replace(PROFILE, training_beside={})


def test_measurements_in_company_stand_beside_each_other() -> None:
    fresh = Measurement(4e-6, 0, 1)
    step = Step(fresh, fresh)
    more = PROFILE.updated(Profile("abc123", {}, {}, {}, {}, {2: {"k": step}, 3: {"k": step}}))
    assert more.training_beside == {2: {**TRAINING_BESIDE[2], "k": step}, 3: {"k": step}}
    assert more.beside == BESIDE
    newer = Profile("abc123", {}, {}, {}, {3: {"aten.relu": fresh}, 4: {"aten.add": fresh}})
    assert PROFILE.updated(newer).beside == {
        2: BESIDE[2],
        3: {"aten.relu": fresh},
        4: {**BESIDE[4], "aten.add": fresh},
    }


def test_company_is_another_one_in_training() -> None:
    assert PROFILE.slowdown("aten.relu", 2) == pytest.approx(0.5)
    assert PROFILE.slowdown("aten.relu+grad", 2, training=True) == pytest.approx(1.0)  # 3 + 6 µs alone, 4 + 14 beside
    assert PROFILE.slowdown("another", 2, training=True) == pytest.approx(1.0)
    assert replace(PROFILE, training_beside={}).slowdown("aten.relu+grad", 2, training=True) == 0
    assert replace(PROFILE, beside={}).slowdown("aten.relu", 2) == 0


def test_what_is_added_stands_beside_what_is_there(tmp_path: Path) -> None:
    add_profile(tmp_path, PROFILE)
    add_profile(tmp_path, Profile("abc123", {"model name": "Z80"}, {"aten.add": RELU}))
    assert read_profile(tmp_path, "abc123") == Profile(
        "abc123",
        {"model name": "Z80"},
        {"aten.relu": RELU, "aten.add": RELU},
        PROFILE.training,
        BESIDE,
        TRAINING_BESIDE,
    )


@pytest.mark.parametrize("fingerprint", ["", "../abc", "a/b"])
def test_a_fingerprint_is_no_path(tmp_path: Path, fingerprint: str) -> None:
    with pytest.raises(InputError) as error:
        read_profile(tmp_path, fingerprint)
    assert str(error.value) == (
        f"the fingerprint '{fingerprint}' is none; it is made of letters and digits; calibrate again"
    )


def test_newer_measurements_win() -> None:
    newer = Profile("abc123", {"a": "b"}, {"aten.relu": Measurement(3e-6, 0, 1), "aten.add": Measurement(1e-6, 0, 1)})
    merged = PROFILE.updated(newer)
    assert merged == Profile("abc123", {"a": "b"}, dict(newer.ops), PROFILE.training, BESIDE, TRAINING_BESIDE)
    assert newer.updated(PROFILE).ops == {"aten.relu": PROFILE.ops["aten.relu"], "aten.add": newer.ops["aten.add"]}


def test_profiles_of_different_machines_do_not_mix() -> None:
    with pytest.raises(InputError) as error:
        PROFILE.updated(Profile("def456", {}, {}))
    assert str(error.value) == (
        "profiles of different machines do not mix: 'abc123' and 'def456'; "
        "calibrate on the machine that will run the plan"
    )


@pytest.mark.parametrize("numbers", [(-1.0, 0.0, 1), (nan, 0.0, 1), (inf, 0.0, 1), (1.0, -1.0, 1), (1.0, 0.0, 0)])
def test_no_measurement_is_refused(numbers: tuple[Any, ...]) -> None:
    with pytest.raises(InputError, match="is no measurement; seconds and spread are 0 or more, count is 1 or more"):
        Measurement(*numbers)


def test_two_sittings_are_one_measurement() -> None:
    # seconds (1 * 2 + 3 * 4) / 4 = 3.5; widths: once 0.5 * 2 + 1.5, three times 0 + 0.5, so (2.5 + 3 * 0.5) / 4 = 1
    assert Measurement(2.0, 0.5, 1).joined(Measurement(4.0, 0.0, 3)) == Measurement(3.5, 0.29, 4)
    assert RELU.joined(RELU) == Measurement(2e-6, 0.25, 14)


@given(numbers=st.lists(st.tuples(st.floats(1e-9, 1e3), st.floats(0, 9), st.integers(1, 99)), min_size=2, max_size=2))
def test_a_joined_measurement_lies_between_both_and_either_may_come_first(
    numbers: list[tuple[float, float, int]],
) -> None:
    a, b = (Measurement(*each) for each in numbers)
    joined = a.joined(b)
    assert joined == b.joined(a)
    low, high = sorted((a.seconds, b.seconds))
    assert low * 0.999 <= joined.seconds <= high * 1.001
    assert joined.count == a.count + b.count


def test_a_step_is_both_passes() -> None:
    assert STEP.seconds == pytest.approx(9e-6)
    assert STEP.spread == pytest.approx((3e-6 * 0.5 + 6e-6 * 0.125) / 9e-6)
    assert STEP.count == 7
    assert STEP.joined(STEP) == Step(Measurement(3e-6, 0.5, 14), Measurement(6e-6, 0.12, 16))
    nothing = Measurement(0.0, 0.0, 1)
    assert Step(nothing, nothing).spread == 0


def test_noise_is_told_where_it_matters() -> None:
    known = {
        "long": Measurement(1.0, 0.1, 7),
        "twice": Measurement(0.5, 0.3, 7),
        "once": Measurement(1.0, 0.26, 7),
        "short": Measurement(0.01, 9.0, 7),
    }
    # 7 of long, 2 * 0.5 of twice, 1 of once and 0.01 of short; not measured ones do not count
    keys = [*["long"] * 7, "twice", "twice", "once", "short", "new"]
    total = 7 + 1 + 1 + 0.01
    assert noisy(keys, known) == (Noise("once", 0.26, 1 / total), Noise("twice", 0.3, 1 / total))
    assert noisy(["twice"], {"twice": STEP}) == ()  # a spread of exactly a quarter
    assert noisy([], {}) == ()


def test_a_key_for_training_marks_what_gets_a_gradient() -> None:
    graph = sketch(
        {"x": (4, 5), "w": (5, 5), "t": (5, 5), "a": (4, 5), "r": (4, 5), "y": (4, 5), "c": ((4, 5), "bool")},
        [
            ("aten.relu.default", "x", "r"),
            ("aten.t.default", "w", "t"),
            ("aten.mm.default", "r t", "a"),
            ("aten.add.Tensor", "a r", "y"),
            ("aten.gt.Scalar", "y", "c"),
        ],
    )
    assert training_keys(graph) == (
        "aten.relu.default(float32[4,5])->float32[4,5]",
        "aten.t.default(float32[5,5]+grad)->float32[5,5]",
        "aten.mm.default(float32[4,5], float32[5,5]<t+grad)->float32[4,5]",
        "aten.add.Tensor(float32[4,5]+grad, float32[4,5])->float32[4,5]",
        "aten.gt.Scalar(float32[4,5]+grad)->bool[4,5]",
    )
    assert training_keys(graph)[0] == op_keys(graph)[0]
