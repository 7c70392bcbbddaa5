"""Profiles in files, and what is refused."""

import json
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.measured import Measurement, Profile
from costmodels.profilefile import add_profile, read_profile, write_profile
from graphs.common.errors import InputError
from tests.costmodels.profiles import CONTENDED, PROFILE, RELU, TRAINING_CONTENDED


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
        ('{"version": 1, "fingerprint": "other"}', "fingerprint 'other'"),
        ("{}", "'fingerprint'"),
        ('{"fingerprint": "abc123"}', "'version'"),
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


ODD = [[8.0], {"a": 1}, {}, "", "x", None, True, -1, 0, 1e308]


def places(document: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield where something stands in a document, on every level."""
    for key in document if isinstance(document, dict) else ():
        yield (*path, key)
        yield from places(document[key], (*path, key))


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_a_profile_with_a_wrong_value_is_refused_or_can_be_used(tmp_path: Path, odd: object) -> None:
    moments = {7: {"computing": 1.0, "memory": 2.0}}
    path = write_profile(tmp_path, replace(PROFILE, pace={"computing": 1.0}, moments=moments))
    text = path.read_text(encoding="utf-8")
    for place in places(json.loads(text)):
        document = holder = json.loads(text)
        for key in place[:-1]:
            holder = holder[key]
        holder[place[-1]] = odd
        path.write_text(json.dumps(document), encoding="utf-8")
        with suppress(InputError):
            profile = read_profile(tmp_path, "abc123")
            if profile is None:
                assert place == ("version",)
                continue
            assert all(math.isfinite(spread) for spread in profile.pace_spread.values())
            assert math.isfinite(profile.slowdown("aten.relu", 2))


def test_half_a_file_is_refused(tmp_path: Path) -> None:
    path = write_profile(tmp_path, PROFILE)
    path.write_text(path.read_text(encoding="utf-8")[:40], encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_profile(tmp_path, "abc123")
    assert str(error.value).startswith(f"the profile '{path}' is damaged or foreign (the profile '{path}' is not JSON")
    assert str(error.value).endswith("); delete it and calibrate again")


def test_a_profile_of_another_version_is_measured_again(tmp_path: Path) -> None:
    path = write_profile(tmp_path, PROFILE)
    path.write_text(json.dumps({"version": 8, "fingerprint": "abc123", "operators": "in another form"}))
    assert read_profile(tmp_path, "abc123") is None
    add_profile(tmp_path, PROFILE)
    assert read_profile(tmp_path, "abc123") == PROFILE


def test_what_is_added_stands_beside_what_is_there(tmp_path: Path) -> None:
    add_profile(tmp_path, PROFILE)
    add_profile(tmp_path, Profile("abc123", {"model name": "Z80"}, {"aten.add": RELU}))
    assert read_profile(tmp_path, "abc123") == Profile(
        "abc123",
        {"model name": "Z80"},
        {"aten.relu": RELU, "aten.add": RELU},
        PROFILE.training,
        CONTENDED,
        TRAINING_CONTENDED,
    )


@pytest.mark.parametrize("fingerprint", ["", "../abc", "a/b"])
def test_a_fingerprint_is_no_path(tmp_path: Path, fingerprint: str) -> None:
    with pytest.raises(InputError) as error:
        read_profile(tmp_path, fingerprint)
    assert str(error.value) == (
        f"the fingerprint '{fingerprint}' is none; it is made of letters and digits; calibrate again"
    )
