"""Models of transformers as their users have them: with a cache that only text generation wants."""

from functools import cache
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import planner
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from planner.runtime.benchmark.check import compare_outputs
from tests.planner.runtime.small import desk

hf: Any = transformers
IDS = torch.arange(10).reshape(2, 5)


@cache
def llama() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, vocab_size=20)).eval()


@pytest.mark.attack("first-try")
def test_a_default_cache_is_left_out() -> None:
    model = llama()
    program = program_from_module(model, {"input_ids": IDS})
    assert model.config.use_cache is True
    with torch.no_grad():
        expected = model(IDS, use_cache=False)
    got = program.run(IDS)
    assert type(got) is type(expected)
    assert list(got) == ["logits"]
    assert torch.equal(got.logits, expected.logits)


@pytest.mark.attack("first-try")
def test_a_cache_that_is_asked_for_is_refused_by_name() -> None:
    with pytest.raises(InputError) as error:
        program_from_module(llama(), (IDS,), {"use_cache": True})
    assert str(error.value) == (
        "model 'LlamaForCausalLM' cannot be traced by torch.export: it returns a "
        "'transformers.cache_utils.DynamicCache'; a key-value cache is state between calls: call the model with "
        "use_cache=False"
    )


class Own:
    pass


class Returning(nn.Module):
    def forward(self, x: torch.Tensor) -> Own:
        found = Own()
        found.x = x + 1  # type: ignore[attr-defined]  # whatever a user's class holds
        return found


def test_another_class_that_torch_does_not_know() -> None:
    with pytest.raises(InputError, match=r"it returns a '.*test_caches.Own'; return tensors, tuples, lists or dict"):
        program_from_module(Returning(), torch.ones(1))


@pytest.mark.attack("first-try")
def test_a_planned_model_returns_what_the_model_returns() -> None:
    plan = planner.plan(llama(), {"input_ids": IDS}, cluster=desk(1))
    with planner.start(plan, llama()) as runner:
        assert not compare_outputs(runner).wrong
        for result in (runner(IDS), runner(input_ids=IDS), *runner.stream([IDS, {"input_ids": IDS}, [IDS], (IDS,)])):
            assert type(result).__name__ == "CausalLMOutputWithPast"
            assert torch.equal(result.logits, runner(IDS)["logits"])
    assert llama().config.use_cache is True
