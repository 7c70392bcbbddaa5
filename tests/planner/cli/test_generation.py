"""A language model from the command line: the plan of the API, a run with transformers' tokens, and bad input."""

import json
import os
from pathlib import Path

import pytest
import torch

import planner
from costmodels.units import format_rate, format_seconds
from graphs.importers.from_config import headed_module
from planner.cli import main
from planner.plans.prediction import predict
from planner.view.page import template
from planner.view.payload import payload
from planner.view.show import drawn
from tests.costmodels.language_model.test_gguf import ENDS, HIDDEN, dense, pairs
from tests.costmodels.language_model.test_gguf import written as write_gguf
from tests.costmodels.language_model.test_safetensors import folder_of
from tests.planner.cli.given import PAPER, ROOT, Refused, pair_here
from tests.planner.cli.started import Started
from tests.planner.view.payloads import embedded

MODEL = """
import torch
import transformers

def llama():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 61}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
    return transformers.LlamaForCausalLM(config).eval(), (torch.ones(1, 4, dtype=torch.long),)
"""
LM = "a_language_model:llama"
ASKED = "--goal generation --prompt 20 --sequences 4 --rows 2 --rewrites none --time-limit 60 --gap 0.5"
WORK = planner.OpenWorkload(prompt=20, output=6, sequences=4, rows=2)
"""What `ASKED` and --output 6 ask for."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model, clusters on paper and here, and a plan for each."""
    folder = tmp_path_factory.mktemp("generation")
    (folder / "a_language_model.py").write_text(MODEL, encoding="utf-8")
    (folder / "paper.toml").write_text(PAPER, encoding="utf-8")
    (folder / "here.toml").write_text(pair_here(), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.chdir(folder)
        pins = "--pin model.model.layers.0=a --pin model.model.layers.1=b --time-limit 1"
        for name, more in (("paper", ""), ("here", pins)):
            words = f"plan {LM} --cluster {name}.toml {ASKED} --output 6 {more} -o {name}.json -q"
            assert main(words.split()) == 0
    return folder


@pytest.fixture(autouse=True)
def _there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))


def test_the_command_line_and_the_api_give_the_same_plan() -> None:
    search = planner.Search(rewrites="none", time_limit_s=60.0, gap=0.5)
    plan = planner.plan(LM, cluster="paper.toml", goal="generation", workload=WORK, search=search)
    assert isinstance(plan, planner.Plan)
    planner.save_plan(plan, "api.json")
    assert Path("api.json").read_bytes() == Path("paper.json").read_bytes()
    assert (plan.workload.output, plan.workload.context) == (6, 26)  # of --output 6, and as many as are needed


SMALL = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64}


@pytest.mark.parametrize(
    ("config", "assumed"),
    [
        ({"model_type": "llama", **SMALL}, ["vocab_size=32000"]),
        ({"model_type": "llama", **SMALL, "vocab_size": 99}, []),
        ({"model_type": "mistral", **SMALL, "vocab_size": 99, "num_key_value_heads": 2}, ["sliding_window=4096"]),
        ({"model_type": "gemma", **SMALL, "vocab_size": 99, "num_key_value_heads": 4}, ["head_dim=256"]),
        ({"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4}, ["vocab_size=50257"]),
    ],
)
def test_fit_says_which_sizes_it_assumed(
    config: dict[str, object], assumed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    line = ["fit", str(path), "--cluster", "RTX-4090", "--context", "512", "--prompt", "16", "--output", "16", "--json"]
    assert main(line) == 0
    first = capsys.readouterr()
    assert json.loads(first.out)["assumed"] == assumed
    said = f"the config leaves out sizes, and transformers' defaults were taken: {', '.join(assumed)}; add"
    assert (said in first.err) == bool(assumed)
    assert main(line) == 0
    assert capsys.readouterr().out == first.out  # the same bytes: no clock


@pytest.fixture
def language_files(tmp_path: Path) -> dict[str, Path]:
    """A language model as a config.json, as a folder with its headers, and as a .gguf."""
    config = {"model_type": "llama", "hidden_size": HIDDEN, "num_attention_heads": 4, "num_key_value_heads": 2}
    config |= {"num_hidden_layers": 2, "intermediate_size": 512, "vocab_size": 1000, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    network = headed_module(config)
    tensors = {name: ("F16", tuple(tensor.shape)) for name, tensor in network.named_parameters()}
    (tmp_path / "headers").mkdir()
    gguf = write_gguf(tmp_path / "m.gguf", pairs(attention__head_count_kv=2), ENDS, dense(0), dense(1))
    return {
        "config.json": tmp_path / "config.json",
        "headers": folder_of(tmp_path / "headers", config, tensors),
        "gguf": gguf,
    }


@pytest.mark.parametrize("form", ["config.json", "headers", "gguf"])
def test_layers_are_divided_where_no_operator_can_run(
    form: str, language_files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model, asked = language_files[form], "--prompt 20 --sequences 4 --context 64"
    assert main(f"plan {model} --cluster paper.toml --goal generation {asked} --output 6 -o layers.json".split()) == 0
    said = capsys.readouterr()
    assert main(f"fit {model} --cluster paper.toml {asked} --output 6 -o fit.json".split()) == 0
    assert capsys.readouterr().out == said.out
    assert said.err.startswith("planner: note: layers are divided, as no operator can run here; `planner fit` does")
    work = planner.OpenWorkload(prompt=20, output=6, sequences=4, context=64)
    plan = planner.plan(model, cluster="paper.toml", goal="generation", workload=work)
    assert isinstance(plan, planner.GenerationPlan)
    assert plan.question.value_bytes * 2 * 2 * 64 * 64 * 4 * 2 == sum(each.cache for each in plan.holdings)
    plan.save("api.json")
    assert Path("api.json").read_bytes() == Path("layers.json").read_bytes() == Path("fit.json").read_bytes()
    read = planner.plan(planner.read_language_model(model), cluster="paper.toml", goal="generation", workload=work)
    assert isinstance(read, planner.GenerationPlan)
    assert read.stages == plan.stages
    for path in (Path("api.json"), Path("layers.json"), Path("fit.json")):
        path.unlink()


def test_operators_of_a_config_are_placed_on_devices_that_are_here(language_files: dict[str, Path]) -> None:
    search = planner.Search(rewrites="none", gap=0.5)
    model = language_files["config.json"]
    plan = planner.plan(model, cluster="here.toml", goal="generation", workload=WORK, search=search)
    assert isinstance(plan, planner.Plan)
    divided = planner.plan(
        language_files["gguf"], cluster="here.toml", goal="generation", workload=planner.OpenWorkload()
    )
    assert isinstance(divided, planner.GenerationPlan)


def test_a_division_has_pictures(language_files: dict[str, Path], tmp_path: Path) -> None:
    plan = planner.plan(language_files["gguf"], cluster="paper.toml", goal="generation")
    assert isinstance(plan, planner.GenerationPlan)
    page, svg, png = (planner.show(plan, tmp_path / f"p.{name}").content for name in ("html", "svg", "png"))
    assert svg in page
    assert png.startswith(b"\x89PNG")
    with pytest.raises(
        planner.InputError, match=r"^a plan of `planner fit` has layers and no graph for dot; take html"
    ):
        planner.show(plan, tmp_path / "p.dot")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--rows 2", "rows is of operators, and layers are divided here; leave it out, or give the model as package"),
        ("--pin a=b", "a constraint is of operators, and layers are divided here"),
        ("--rewrites none", "rewrites is of operators"),
        ("--solver ilp", "the solver is of operators"),
        ("--batch 2", "the batch is of operators"),
        ("--tokens 5", "--tokens is for plans of operators, and layers are divided here; leave it out"),
    ],
)
def test_options_of_operators_are_refused(
    words: str, text: str, language_files: dict[str, Path], refused: Refused
) -> None:
    asked = f"plan {language_files['gguf']} --cluster paper.toml --goal generation -o p.json {words}"
    assert text in refused(asked.split())
    assert not Path("p.json").exists()


def test_a_division_is_no_plan_of_operators(language_files: dict[str, Path], refused: Refused) -> None:
    assert main(f"fit {language_files['gguf']} --cluster paper.toml -o division.json -q".split()) == 0
    assert "is a division of layers, which other programs run; `planner export`" in refused(["show", "division.json"])
    Path("division.json").unlink()


def test_a_run_compares_tokens_and_phases(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(f"run here.json {LM} --generate 6 --rounds 1 --json".split()) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["tokens"], document["differences"]) == (24, [])
    assert document["measured"]["tokens_per_s"] > 0
    names = [figure["name"] for figure in document["against_prediction"]["totals"]]
    assert names == [
        "first token, one sequence alone",
        "each token after it",
        "first tokens of all",
        "all tokens of all",
    ]


@pytest.mark.slow
def test_processes_generate_the_same_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(f"run here.json {LM} --generate 6 --rounds 1 --processes --json".split()) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["tokens"], document["differences"]) == (24, [])


@pytest.mark.slow
def test_ranks_generate_the_same_tokens(folder: Path, started: Started) -> None:
    words = (folder / "here.json", LM, "--generate", "6", "--rounds", "1", "--json")
    for rank in range(2):
        started.start(rank, 2, *words, PYTHONPATH=os.pathsep.join([str(folder), str(ROOT)]))
    (status, out, errors), _ = started.ends()
    assert status == 0, errors
    document = json.loads(out)
    assert (document["tokens"], document["differences"]) == (24, [])


def test_verify_compares_the_pass_of_one_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(f"verify here.json {LM} -q".split()) == 0
    assert capsys.readouterr().err == ""


def test_explain_and_simulate_say_both_phases(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("explain paper.json --time-limit 0.1", "simulate paper.json"):
        assert main(words.split()) == 0
        said = " ".join(capsys.readouterr().out.split())
        for part in (
            "pass of 16 tokens of 26 positions:",
            "pass of 1 token of 26 positions:",
            "4 for the prompt and 5 after",
        ):
            assert part in said


def test_a_link_of_another_bandwidth_changes_every_phase() -> None:
    slower = planner.simulate("paper.json", what_if=planner.WhatIf(settings=("link.latency=1s",))).plans["after"]
    assert all(each.table.link_latency_s.tolist() == [1.0] for each in slower.phases)
    assert slower.table.link_latency_s.tolist() == [1.0]
    with pytest.raises(planner.InputError, match=r"^a.flops.float32 changes each phase of generation in another way"):
        planner.simulate("paper.json", what_if=planner.WhatIf(settings=("a.flops.float32=1TFLOP/s",)))


def test_the_page_has_tokens_a_second_first_and_the_cache_in_the_bands() -> None:
    import quickjs

    plan = planner.load_plan("paper.json")
    summary = embedded(drawn(plan, "html").decode())["summary"]
    context = quickjs.Context()
    for name in ("format.js", "facts.js"):
        context.eval(template(name))
    context.eval("var deviceName = (devices, d) => devices[d].name, escapeHtml = (text) => text;")
    context.set("document_", json.dumps({"summary": summary, "devices": [{"name": "a"}, {"name": "b"}]}))
    figures = json.loads(context.eval("JSON.stringify(figures(JSON.parse(document_)))"))
    assert figures[0][0] == "Tokens of all, predicted"
    assert figures[0][1].endswith("<small>tokens/s</small>")
    said = json.loads(context.eval("JSON.stringify(phases(JSON.parse(document_).summary.generation))"))
    assert [line.split(" over")[0] for line in said] == ["A pass of 16 tokens", "A pass of 1 token"]
    devices = payload(plan, predict(plan))["devices"]
    # of a layer keys and values: 2 heads, 26 positions, 8 numbers in float32, 2 rows, 2 groups; no optimizer
    assert sum(device["parts"][4] for device in devices) == 2 * 2 * 2 * 26 * 8 * 4 * 2 * 2
    assert sum(device["parts"][2] for device in devices) == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (f"run here.json {LM}", "the plan is for generation; say how many tokens after each prompt, such as --gen"),
        (f"run here.json {LM} --generate 60", "do not fit into the context of 26; ask for fewer, or a longer context"),
        (
            f"plan {LM} --cluster paper.toml --goal generation --prompt 60 --new-tokens 9 --context 64 -o p.json",
            "a prompt of 60 tokens and 9 after it do not fit into the context of 64; ask for fewer, or",
        ),
        (
            f"plan {LM} --cluster paper.toml --goal generation --prompt 60 --new-tokens 9 -o p.json",
            "the context is 69 positions, and 'LlamaForCausalLM' has 64; ask for less",
        ),
        (
            "plan examples.networks:mnist --cluster paper.toml --goal generation -o p.json",
            "is no language model of transformers, so its cache is not known; give one with a head",
        ),
        (f"plan {LM} --cluster paper.toml --goal latency --rows 2 -o p.json", "rows is for generation and the goal is"),
        (f"plan {LM} --batch 2 --cluster paper.toml --goal generation -o p.json", "--batch and --size are of one pass"),
        ("calibrate --generation -o c.toml", "--generation measures a language model: give MODEL, and leave --train"),
    ],
)
def test_bad_input_is_named_with_the_way_out(words: str, text: str, refused: Refused) -> None:
    assert text in refused(words.split())


def test_a_plan_for_other_sequences_or_another_length_is_refused() -> None:
    from a_language_model import llama  # type: ignore[import-not-found]  # the folder's own

    plan, module = planner.load_plan("here.json"), llama()[0]
    for rows, context, text in (
        (4, 26, r"^the plan is for rows=2, and the model was imported with rows=4; import it as"),
        (2, 30, r"^the plan is for context=26, and the model was imported with context=30; "),
    ):
        with pytest.raises(planner.InputError, match=text):
            planner.GenerationRunner(plan, planner.generation_program(module, rows=rows, context=context, chunks=()))
    with pytest.raises(planner.InputError, match=r"^the plan is for generation, which takes prompts; leave example_"):
        planner.start(plan, module, seed=1)


def test_a_plan_for_generation_is_started_as_any_other() -> None:
    from a_language_model import llama

    module = llama()[0]
    wanted = module.generate(torch.tensor([[3, 5]]), max_new_tokens=6, do_sample=False, eos_token_id=None)[0, 2:]
    imported = planner.generation_program(module, rows=2, context=26, chunks=(16,))
    with planner.start("here.json", imported) as runner:
        assert runner.generate([[3, 5]], 6, stops=()) == [wanted.tolist()]
    for model, processes in ((module, False), (planner.NamedModel(LM), True)):
        with planner.start("here.json", model, processes=processes) as found:
            assert isinstance(found, planner.GenerationRunner)
            assert found.generate([[3, 5]], 6, stops=()) == [wanted.tolist()]
            assert bool(found.pids) == processes


def test_a_change_of_a_link_says_tokens_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "paper.json", "--set", "link.bandwidth=1GB/s", "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert set(both) == {"before", "after"}
    assert main(["simulate", "paper.json", "--set", "link.bandwidth=1GB/s"]) == 0
    rows = {line[:25].strip(): line for line in capsys.readouterr().out.splitlines()}
    assert format_rate(both["after"]["tokens_per_s"]) in rows["tokens/s"]
    assert format_seconds(both["after"]["first_token_s"]) in rows["first token of one alone"]
    assert "samples/s" not in rows


def test_sequences_that_do_not_fill_their_groups_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ASKED.replace("--sequences 4", "--sequences 3")
    assert main(f"plan {LM} --cluster paper.toml {asked} --output 6 -o three.json".split()) == 0
    assert "tokens/s of 3 sequences in 2 groups of up to 2, prompts of 20 tokens and 6 after" in capsys.readouterr().out
    three = planner.load_plan("three.json")
    assert three.workload.sequences == 3
    difference = planner.diff("paper.json", three)
    assert [change.what for change in difference.changes] == ["sequences"]
