"""planner choose: rows, reasons and proof; what cannot be asked."""

import html
import json
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from planner.cli import main
from planner.parallelism.closed_form.config_file import load_config
from tests.planner.cli.given import Refused

GPUS = [f"gpu{i}" for i in range(8)]
CLUSTER = "\n".join(
    [
        "version = 1",
        *(f'[[device]]\nname = "{name}"\nlike = "A100-SXM-80GB"' for name in GPUS),
        f'[[link]]\nbetween = {json.dumps(GPUS)}\nlike = "NVLink3"',
        '[replicas]\ncount = 2\nbandwidth = "25 GB/s"',
    ]
)
GPT = {"layers": 24, "hidden": 6144, "heads": 64}
AT_LENGTH = ["--time-limit", "100000"]  # counted work ends the search, not the clock of a busy machine
COMMAND = ["choose", "model.json", "--cluster", "hosts.toml", "--global-batch", "64", *AT_LENGTH]


@pytest.fixture(autouse=True)
def _files(_in_folder: None) -> None:
    Path("hosts.toml").write_text(CLUSTER)
    Path("model.json").write_text(json.dumps(GPT))


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the command prints as it is, and with options."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("choose"))
        Path("hosts.toml").write_text(CLUSTER)
        Path("model.json").write_text(json.dumps(GPT))
        for options in ("", "--json", "--all --json"):
            with redirect_stdout(StringIO()) as out:
                assert main([*COMMAND, *options.split()]) == 0
            found[options] = out.getvalue()
    return found


def test_rows_with_a_reason_each_and_a_proof(said: dict[str, str]) -> None:
    answer = json.loads(said["--all --json"])
    assert (answer["status"], answer["gap"]) == ("optimal", 0.0)
    first, *others = answer["rows"]
    assert first["reason"].startswith("the fastest; computing ")
    assert all("slower than row 1" in row["reason"] for row in others)
    assert all(row["devices"] == row["data"] * row["tensor"] * row["pipeline"] <= 16 for row in answer["rows"])
    assert all(row["data"] * row["micro_batches"] * row["samples"] == 64 for row in answer["rows"])
    assert first["tokens_per_s"] == pytest.approx(64 * 2048 / first["step_s"])
    assert 0 < first["mfu"] < 0.685
    assert max(row["peak_bytes"] for row in answer["rows"]) <= 0.9 * 80e9  # none takes the reserve


def test_the_table_fits_and_says_what_it_left_out(said: dict[str, str]) -> None:
    lines = said[""].splitlines()
    assert lines[0] == "11.2 billion parameters, 2,048 tokens a sample: steps of 64 samples on up to 16 devices"
    assert lines[-1].startswith("optimal: no way takes less; ")
    assert "more rows, saving less than 20% of a faster one's memory" in lines[-3]
    assert max(map(len, lines)) <= 100
    assert "MFU: the model's own FLOP, of full attention: scores that a causal mask hides count" in lines


def test_an_optimizer_with_fewer_states_takes_less_memory_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for optimizer in ("adam", "momentum", "sgd"):
        shape = ["--data", "2", "--tensor", "8", "--zero", "0", "--micro-batch", "1", "--recompute", "full"]
        assert main([*COMMAND, *shape, "--optimizer", optimizer, "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        rows.append(answer["rows"][0])
        each = answer["model"]["parameters"] / 8
    adam, momentum, sgd = (row["peak_bytes"] for row in rows)
    assert adam - momentum == pytest.approx(4 * each, rel=0.01)  # a float32 state less; each device has all norms
    assert momentum - sgd == pytest.approx(4 * each, rel=0.01)
    assert rows[0]["sync_s"] > rows[1]["sync_s"] > rows[2]["sync_s"]


def test_nothing_that_fits_is_exit_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--memory", "2 GiB"]) == 1
    told = capsys.readouterr().err
    assert "planner: nothing fits: the way that needs the least takes " in told
    assert "of a device, and a plan may use 2 GiB of it; add devices or memory, or leave more open" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--tensor", "3"],
            "tensor = 3 does not fit 64 heads and 64 of keys on 16 devices; the nearest that works is 2",
        ),
        (["--pipeline", "30"], "pipeline = 30 does not fit 24 layers on 16 devices; the nearest that works is 16"),
        (["--data", "7"], "data = 7 does not fit the global batch of 64 on 16 devices; the nearest that works is 8"),
        (
            ["--data", "4", "--micro-batch", "3"],
            "micro-batch = 3 does not fit 16 samples of a replica; the nearest that works is 2",
        ),
        (
            ["--tensor", "8", "--data", "4"],
            "tensor 8 × pipeline 1 × data 4 = 32 devices, and there are 16; ask for fewer of one",
        ),
        (
            ["--tensor", "4", "--devices", "10"],
            "tensor 4 × pipeline 1 × data 1 = 4 does not divide 10 devices; the nearest that works is 8 devices",
        ),
        (
            ["--pipeline", "5", "--schedule", "interleaved"],
            "pipeline = 5 does not fit interleaved, whose stages of 24 layers are alike; the nearest that works is 4",
        ),
        (
            ["--pipeline", "8", "--schedule", "interleaved", "--data", "2", "--micro-batch", "32"],
            "no way keeps all that is asked for at once; leave one of the options open",
        ),
        (["--devices", "17"], "17 devices asked for; the cluster has 16"),
        (["--zero", "3", "--data", "1"], "zero = 3 does not fit a single replica; the nearest that works is 0"),
        (
            ["--schedule", "gpipe"],
            "the schedules of a transformer in closed form are 1f1b, interleaved, zb-h1; --schedule gpipe is for "
            "networks that are priced operator by operator",
        ),
        (["--size", "seq=3"], "'model.json' has no symbolic dimension 'seq'; leave --size out"),
    ],
)
def test_what_does_not_divide_is_named_with_the_nearest_that_does(
    refused: Refused, words: list[str], told: str
) -> None:
    assert refused([*COMMAND, *words]) == f"planner: {told}"


def test_devices_that_do_not_reach_each_other_are_named(refused: Refused) -> None:
    Path("hosts.toml").write_text(CLUSTER.replace('"gpu7"]', '"gpu6"]').replace('"gpu6", "gpu6"', '"gpu6"'))
    told = refused(COMMAND)
    assert "no link leads from 'gpu0' to 'gpu7'; add a [[link]], or keep the 7 devices" in told


def test_a_wrong_model_is_named_with_its_file(refused: Refused) -> None:
    Path("model.json").write_text(json.dumps(GPT | {"heads": 100}))
    assert refused(COMMAND) == (
        "planner: model.json: heads = 100 does not divide hidden = 6144; the nearest that does is 96"
    )


def test_a_row_is_exported_by_its_number(capsys: pytest.CaptureFixture[str], refused: Refused) -> None:
    words = [*COMMAND, "--schedule", "1f1b", "--recompute", "full", "--to", "megatron-args"]
    assert main([*words, "-o", "arguments.txt"]) == 0
    assert "row 1 for megatron-args → arguments.txt" in capsys.readouterr().out
    assert "--global-batch-size 64" in Path("arguments.txt").read_text()
    assert main([*COMMAND, "--row", "2", "-o", "row.json"]) == 0
    assert "row 2 → row.json; planner run row.json MODEL trains it" in capsys.readouterr().out
    assert sum(stage.total for stage in load_config(Path("row.json")).stages) == GPT["layers"]
    assert refused([*words, "--row", "900"]).startswith("planner: there is no row 900; there are ")


def test_a_page_shows_the_rows_by_time_and_memory(said: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--html", "rows.html", "--row", "2", "-o", "row.json"]) == 0
    assert "the rows as a page → rows.html" in capsys.readouterr().out
    rows = json.loads(said["--json"])["rows"]
    page = Path("rows.html").read_text()
    assert not re.search(r"<script|https?:(?!//www.w3.org)", page)
    points = re.findall(r'<a href="#row(\d+)" aria-label="row \d+: [^"]+, (\d+) devices"', page)
    assert points == [(str(row["number"]), str(row["devices"])) for row in rows]
    assert page.count('<tbody id="row') == len(rows)
    assert all(html.escape(row["reason"]) in page for row in rows)
    places = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)" r="3"', page)]
    for earlier, later, before, now in zip(rows, rows[1:], places, places[1:], strict=False):
        assert now[0] >= before[0]  # later rows are slower, and those with more memory stand higher
        assert (later["peak_bytes"] > earlier["peak_bytes"]) == (now[1] < before[1])
    assert main([*COMMAND, "--html", "rows.html"]) == 2
    assert "'rows.html' is there already" in capsys.readouterr().err


def test_stages_of_unlike_devices_have_degrees_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    Path("model.json").write_text(json.dumps({"layers": 12, "hidden": 4096, "heads": 32}))
    unlike = "2xA100-SXM-80GB+4xV100-SXM2-32GB:PCIe4"
    command = ["choose", "model.json", "--cluster", unlike, "--global-batch", "32", *AT_LENGTH]
    assert main([*command, "--json"]) == 0
    first, *others = json.loads(capsys.readouterr().out)["rows"]
    assert sum(stage["data"] * stage["tensor"] for stage in first["stages"]) == first["devices"] == 6
    assert len({(stage["data"], stage["tensor"]) for stage in first["stages"]}) > 1
    assert first["step_s"] < 0.8 * min(row["step_s"] for row in others)
    assert main([*command, "--to", "megatron-args"]) == 0  # which has the same degrees on all stages
    assert "--pipeline-model-parallel-size 3" in capsys.readouterr().out


@pytest.mark.parametrize("batch", ["1000000001", "99999999999999999999"])
@pytest.mark.parametrize("model", ["model.json", "examples.networks:mnist"])
def test_a_batch_that_nobody_can_divide_is_refused(batch: str, model: str, refused: Refused) -> None:
    told = f"the global batch is {int(batch):,}; it may have up to 1,000,000,000 samples"
    assert refused(["choose", model, "--cluster", "hosts.toml", "--global-batch", batch]) == f"planner: {told}"


def test_a_batch_of_any_divisors_is_searched_within_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    one = ["--devices", "8", "--data", "1", "--tensor", "8", "--time-limit", "0.2"]  # 720,720,000 has 1,008 divisors
    assert main([*COMMAND[:4], "--global-batch", "720720000", *one, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["samples"] < 1000


def test_micro_batches_of_a_network_have_a_largest_size(refused: Refused) -> None:
    told = "the global batch of 1,000,003 samples would need micro-batches of 1,000,003 or more; those of up to 65,536"
    assert told in refused(
        ["choose", "examples.networks:mnist", "--cluster", "hosts.toml", "--global-batch", "1000003"]
    )


def test_rows_that_save_little_memory_are_left_out_with_what_they_save(said: dict[str, str]) -> None:
    (share,) = re.findall(r"more rows, saving less than (\d+)% of a faster one's memory", said[""])
    shown, every = (json.loads(said[options])["rows"] for options in ("--json", "--all --json"))
    for row in (row for row in every if row["step_s"] <= shown[-1]["step_s"]):
        faster = [own for own in shown if own["step_s"] <= row["step_s"] and own["devices"] <= row["devices"]]
        assert any(1 - row["peak_bytes"] / own["peak_bytes"] <= int(share) / 100 for own in faster)


def test_what_would_fit_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    # 6.2 billion parameters on two devices: 18 bytes of each are 56 GB a device; 16, with gradients of 2 bytes, 50 GB
    Path("model.json").write_text(json.dumps({"layers": 30, "hidden": 4096, "heads": 32, "sequence": 128}))
    command = ["choose", "model.json", "--cluster", "2xA100-SXM-80GB:NVLink3", "--global-batch", "2", *AT_LENGTH]
    assert main([*command, "--memory", "54GB"]) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert re.search(
        r"the way that needs the least takes [\d.]+ GiB of a device, and a plan may use 50.3 GiB of it; ", told
    )
    assert "--gradients bfloat16 or --optimizer sgd fits; or add devices" in told
    assert main([*command, "--memory", "54GB", "--gradients", "bfloat16", "--json"]) == 0


def test_a_window_without_flash_attention_saves_nothing_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    Path("model.json").write_text(json.dumps({**GPT, "sequence": 4096, "window": 512}))
    told = "scores beyond the window of 512 are computed and hidden; --flash-attention skips them"
    one = [*COMMAND, "--data", "2", "--tensor", "8"]
    assert main(one) == 0
    assert told in capsys.readouterr().out
    assert main([*one, "--flash-attention"]) == 0
    assert told not in capsys.readouterr().out
