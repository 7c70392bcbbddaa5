"""Language models from .pt2 files that were exported with their cache: their tokens, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers.integrations.executorch import TorchExportableModuleForDecoderOnlyLM

import planner
from graphs.phases import Phase
from planner.cli import main
from tests.planner.cli.given import pair_here
from tests.planner.runtime.generation.tiny import CONTEXT, MORE, PROMPTS, WORDS, cut, expected, hf, module

DYNAMIC = {
    "input_ids": {1: torch.export.Dim("tokens", max=32)},
    "cache_position": {0: torch.export.Dim("tokens", max=32)},
}


def exported(folder: Path, family: str, tokens: int = 1, dynamic: bool = False, rows: int = 1) -> Path:
    """A file of the model as transformers exports it for ExecuTorch."""
    model, path = module(family), folder / f"{family}.pt2"
    own = model.generation_config
    model.generation_config = hf.GenerationConfig(cache_implementation="static", use_cache=True)
    try:
        with torch.no_grad():
            program = TorchExportableModuleForDecoderOnlyLM(model, rows, CONTEXT).export(
                torch.zeros(rows, tokens, dtype=torch.long),
                cache_position=torch.arange(tokens),
                dynamic_shapes=DYNAMIC if dynamic else None,
                strict=False,
            )
    finally:
        model.generation_config = own
    torch.export.save(program, path)
    return path


@pytest.mark.parametrize(
    ("family", "tokens", "dynamic", "sizes"),
    [
        ("llama", 1, False, [1]),
        ("llama", 4, False, [1, 4]),
        ("gpt2", 1, False, [1]),
        ("gemma2", 3, True, [1, 8, 16]),
        ("mixtral", 1, False, [1]),
    ],
)
def test_tokens_are_those_of_the_module_that_was_exported(
    tmp_path: Path, family: str, tokens: int, dynamic: bool, sizes: list[int]
) -> None:
    model = planner.generation_program(exported(tmp_path, family, tokens, dynamic), chunks=(64, 16, 8))
    context = CONTEXT if dynamic else CONTEXT - tokens + 1  # a call of 4 tokens has to end within the cache
    assert sorted(model.phases) == [Phase(size, context) for size in sizes]
    graph = model.decode.graph
    assert model.growing == ({cache for cache, _ in graph.caches} if context == CONTEXT else set())
    assert len(graph.caches) == 4
    assert not any(op.kind == "aten.copy.default" for op in graph.ops)
    with planner.GenerationRunner(cut(model, 2), model) as runner:
        assert runner.generate(PROMPTS, MORE, stops=()) == expected(family)
        held = [
            cache.nbytes for device in ("cpu0", "cpu1") for group in runner.caches(device) for cache in group.values()
        ]
    assert sum(held) == 2 * sum(graph.tensor[cache].n_bytes for cache, _ in graph.caches)


def test_a_plan_of_a_file_runs_and_says_whose_tokens_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, plan = exported(tmp_path, "llama"), str(tmp_path / "plan.json")
    (tmp_path / "c.toml").write_text(pair_here(), encoding="utf-8")
    asked = ["--cluster", "c.toml", "--goal", "generation", "--prompt", "5", "--new-tokens", "6", "--sequences", "2"]
    assert main(["plan", path.name, *asked, "-o", plan]) == 0
    work = planner.load_plan(plan).workload
    assert (work.batch, work.in_flight, work.context) == (1, 2, CONTEXT)
    capsys.readouterr()
    assert main(["run", plan, path.name, "--generate", "6", "--rounds", "1"]) == 0
    assert "all 12 tokens are those of the exported program" in capsys.readouterr().out
    assert main(["plan", path.name, *asked, "--rows", "2", "-o", str(tmp_path / "other.json")]) == 2
    assert "imported with rows=1" in capsys.readouterr().err


class Kept(nn.Module):
    """A network with a cache, and one more thing that a case asks for."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.embed, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)
        self.keys = nn.Buffer(torch.zeros(1, 16, 8))
        self.mean = nn.Buffer(torch.full((1, 8), float(what == "begun")))

    def forward(self, tokens: torch.Tensor, input_pos: torch.Tensor) -> Any:
        x = self.embed(tokens)
        if self.what == "no cache":
            return self.head(x)
        if self.what in ("whole", "begun"):
            self.mean.mul_(0.5).add_(x.mean(1))
        if self.what != "whole alone":
            self.keys.index_copy_(1, input_pos, x)
        logits = self.head(x + self.keys.sum(1, keepdim=True) + self.mean)
        return (logits, x) if self.what == "hidden" else logits[:, -1] if self.what == "last" else logits


def saved(folder: Path, what: str, tokens: int = 1) -> Path:
    path = folder / "kept.pt2"
    given = torch.zeros(1, tokens, dtype=torch.long), torch.arange(tokens)
    torch.manual_seed(0)
    torch.export.save(torch.export.export(Kept(what).eval(), given), path)
    return path


@pytest.mark.parametrize("what", ["whole", "last", "keys"])
def test_any_buffers_that_a_call_changes_are_state(tmp_path: Path, what: str) -> None:
    model = planner.generation_program(saved(tmp_path, what))
    shapes = [model.decode.graph.tensor[cache].shape for cache, _ in model.decode.graph.caches]
    assert sorted(shapes) == sorted([(1, 16, 8), (1, 8)] if what == "whole" else [(1, 16, 8)])
    torch.manual_seed(0)
    own = Kept(what).eval()
    text = [3, 9]
    for position in range(10):
        with torch.no_grad():
            logits = own(torch.tensor([[text[position]]]), torch.tensor([position])).flatten()
        text += [int(logits.argmax())] if position > 0 else []
    with planner.GenerationRunner(cut(model, 1), model) as runner:
        assert runner.generate([[3, 9]], 9, stops=()) == [text[2:]]
        assert runner.generate([[3, 9]], 9, stops=()) == [text[2:]]  # from an empty cache again


@pytest.mark.parametrize(
    ("what", "tokens", "said"),
    [
        ("no cache", 1, "it keeps nothing from one call to the next, so it has no cache"),
        ("hidden", 1, r"it returns 2 values, and not logits \[1, tokens, vocabulary\] alone"),
        ("whole", 2, "it takes 2 tokens at least, which cannot be filled up, as each changes 'mean'"),
        ("last", 2, "it takes 2 tokens at least, .* as it returns the logits of the last one alone"),
        ("begun", 1, "a sequence begins with other numbers than 0 in 'mean'"),
    ],
)
def test_an_export_that_cannot_generate_is_refused_by_name(tmp_path: Path, what: str, tokens: int, said: str) -> None:
    with pytest.raises(planner.InputError, match=f"kept.pt2' cannot generate: {said}"):
        planner.generation_program(saved(tmp_path, what, tokens))


def test_several_sequences_at_one_position_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        planner.InputError, match="it was exported for 2 sequences, which share one position in it; export"
    ):
        planner.generation_program(exported(tmp_path, "llama", rows=2))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"rows": 2}, "2 rows are asked for, and '.*' was exported for one sequence; leave rows out"),
        ({"context": 12}, "the context is 12 positions, and '.*' was exported for 16; leave it out, or export it with"),
        ({"lengths": (8,)}, "lengths is fixed in"),
        ({"source": 8}, "source is fixed in"),
    ],
)
def test_other_sizes_than_those_of_the_export_are_refused(tmp_path: Path, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(planner.InputError, match=said):
        planner.generation_program(saved(tmp_path, "keys"), **asked)
