"""planner calibrate: what it prints and writes. The host is made up, operators are measured for real."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from costmodels.cluster.dictionary import cluster_from_dict
from costmodels.cluster.file import read_cluster
from costmodels.measured import Noise
from planner.cli import main
from planner.cli.calibrate_ import calibration_document, calibration_lines, doubts
from planner.planning.calibrate import CHANNELS, Calibration, CalibrationOptions, Operators
from tests.planner.planning.test_calibrate import HOST, MODULE, WIDE

OPERATORS = Operators(
    "cpu",
    measured=1,
    found=1234,
    noise=(Noise("a", 0.5, 0.25), Noise("b", 0.3, 0.125)),
    named={"a": ("conv1", "conv2", "conv3"), "b": ("relu",)},
    seconds=0.0123,
)
FOUND = Calibration(HOST.cluster, HOST.spread, True, (OPERATORS,), ("aten.odd", "aten.odder"))

COARSE = Calibration(WIDE.cluster, {}, False, (replace(OPERATORS, kind="cpu of 2 cores", noise=()),))


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[CalibrationOptions]:
    """What was asked for."""
    seen: list[CalibrationOptions] = []

    def surveys(_: object, *, calibration_options: CalibrationOptions, **__: object) -> tuple[Calibration, ...]:
        seen.append(calibration_options)
        return (FOUND,) if calibration_options.split_cpu is None else (COARSE, FOUND)

    monkeypatch.setattr(MODULE, "surveys", surveys)
    return seen


def test_a_person_reads_peaks_links_and_doubts() -> None:
    shown = list(calibration_lines(FOUND))
    assert shown[0] == "made up as 2 devices"
    assert shown[shown.index("") :] == [
        "",
        "one way        0 B",
        "cpu0 → cpu1  10 us",
        "",
        "devices and links are from the cache; --again measures them anew",
        "cpu: 1 operator measured, 1,234 found in the cache; 12.3 ms for one micro-batch",
        "not sure of 2 noisy operators on cpu, 37.5% of the time: conv1 and 2 like it (spread 50%), relu",
        "(spread 30%)",
        "not sure of cpu0 → cpu1 latency (spread 60%), cpu launch (spread 30%)",
        "not sure of kinds without a formula, whose work is a guess on devices that were not measured:",
        "aten.odd, aten.odder",
    ]


def test_it_says_what_company_costs() -> None:
    contended = replace(OPERATORS, noise=(), slowdown=0.125)
    assert list(calibration_lines(Calibration(HOST.cluster, {}, False, (contended,))))[-1] == (
        "cpu: 1 operator measured, 1,234 found in the cache; 12.3 ms for one micro-batch, "
        "+12.5% while all of them compute"
    )


def test_whoever_is_sure_says_nothing() -> None:
    assert list(doubts(Calibration(HOST.cluster, {}, False))) == []


def test_the_command_writes_the_cluster_and_prints(
    capsys: pytest.CaptureFixture[str], asked: list[CalibrationOptions]
) -> None:
    assert main(["calibrate", "-o", "c.toml"]) == 0
    assert asked == [CalibrationOptions()]
    assert read_cluster(Path("c.toml")) == HOST.cluster
    shown = capsys.readouterr().out
    assert "made up → c.toml" in shown
    assert "cpu0 → cpu1" in shown
    assert "not sure of 2 noisy operators" in shown


def test_options_reach_the_measurement(asked: list[CalibrationOptions]) -> None:
    assert main(["calibrate", "--training", "--again", "--channel", "gloo"]) == 0
    assert asked == [CalibrationOptions(training=True, again=True, channel="gloo")]


def test_every_division_is_shown_and_the_one_of_most_devices_written(
    capsys: pytest.CaptureFixture[str], asked: list[CalibrationOptions]
) -> None:
    assert main(["calibrate", "--split-cpu", "auto"]) == 0
    assert asked == [CalibrationOptions(split_cpu="auto")]
    assert read_cluster(Path("cluster.toml")) == HOST.cluster
    shown = capsys.readouterr().out
    assert shown.index("made up as 1 device") < shown.index("cpu of 2 cores: ") < shown.index("made up → cluster.toml")
    assert main(["calibrate", "--split-cpu", "2", "--json", "-o", "other.toml"]) == 0
    assert asked[-1] == CalibrationOptions(split_cpu=2)
    told = json.loads(capsys.readouterr().out)
    assert cluster_from_dict(told) == HOST.cluster
    assert [cluster_from_dict(one) for one in told["divisions"]] == [WIDE.cluster]


@pytest.mark.parametrize("text", ["0", "-1", "two", ""])
def test_a_number_of_devices_is_a_whole_one_or_auto(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["calibrate", f"--split-cpu={text}"])
    assert stopped.value.code == 2
    assert f"'{text}' is not a whole number of 1 or more, nor 'auto'" in capsys.readouterr().err


def test_json_has_the_cluster_and_everything_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads(json.dumps(calibration_document(FOUND)))
    assert cluster_from_dict(told) == HOST.cluster
    about = told["calibration"]
    assert (about["host_from_cache"], about["kinds_without_formula"]) == (True, ["aten.odd", "aten.odder"])
    assert about["unsure"] == {"cpu launch": 0.3, "cpu0 → cpu1 latency": 0.6}
    assert about["operators"][0]["named"]["a"] == ["conv1", "conv2", "conv3"]


def test_the_channels_are_those_that_can_be_measured() -> None:
    from costmodels.calibrate import cluster

    assert tuple(cluster.CHANNELS) == CHANNELS


def test_an_unknown_channel_is_status_2() -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["calibrate", "--channel", "pigeon"])
    assert stopped.value.code == 2
