"""Tiny language models with distinct logits, and plans that cut them between their layers."""

import re
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import transformers

import planner
from graphs.program.generation import GenerationProgram
from planner.plans.plan import Plan
from simulator.placement import Placement
from tests.planner.runtime.small import desk, make_plan

hf: Any = transformers
WORDS, CONTEXT, MORE = 61, 48, 10
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": WORDS}
ATTENTION = {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2}
PROMPTS = [[7, 3, 9], [5] * 19, [11], list(range(20, 33)), [2, 40]]


@cache
def module(family: str) -> Any:
    """A model of transformers with random weights, large enough that the likeliest token is likely."""
    torch.manual_seed(0)
    built = {
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**ATTENTION)),
        "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**ATTENTION, head_dim=8, sliding_window=6)),
        "gpt2": lambda: hf.GPT2LMHeadModel(
            hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=WORDS)
        ),
        "mixtral": lambda: hf.MixtralForCausalLM(
            hf.MixtralConfig(**ATTENTION, num_local_experts=4, num_experts_per_tok=2, head_dim=8)
        ),
        "mamba": lambda: hf.MambaForCausalLM(hf.MambaConfig(**SIZES, state_size=4, tie_word_embeddings=False)),
    }[family]()
    for parameter in built.parameters():
        parameter.data *= 3 if parameter.dim() > 1 else 1
    return built.eval()


@cache
def imported(family: str) -> GenerationProgram:
    """The model for two rows; the llama may attend to 16 positions alone."""
    lengths = (16,) if family == "llama" else ()
    return planner.generation_program(module(family), rows=2, context=CONTEXT, chunks=(8,), lengths=lengths)


@cache
def expected(family: str) -> list[list[int]]:
    """The continuations of the prompts by transformers' own generate, one prompt at a time."""
    options = {"max_new_tokens": MORE, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return [module(family).generate(torch.tensor([p]), **options)[0, len(p) :].tolist() for p in PROMPTS]


def cut(model: GenerationProgram, n_devices: int, in_flight: int = 2) -> Plan:
    """A plan with each layer on a device of its own, as far as there are devices, and the rest before and after it."""
    graph, device, current = model.decode.graph, [], 0
    for op in graph.ops:
        if found := re.search(r"\.(\d+)\.", f"{op.module}."):
            current = min(int(found[1]) + n_devices // 3, n_devices - 1)
        device.append(current)
    plan = make_plan(model.decode, Placement((0,) * len(graph.ops)), desk(n_devices), in_flight)
    for group in plan.table.together:
        for number in group:
            device[number] = device[group[-1]]
    return make_plan(model.decode, Placement(tuple(device)), desk(n_devices), in_flight)


@cache
def split_plan(family: str) -> Plan:
    """The plan for one group of two sequences on two equal devices that read weights slowly: operators are split."""
    cluster = desk(2)
    devices = tuple(replace(device, memory_bytes_per_s=1e7, launch_s=1e-6) for device in cluster.devices)
    work = planner.OpenWorkload(prompt=20, output=MORE, sequences=2, rows=2, context=CONTEXT)
    return planner.plan(
        imported(family),
        cluster=replace(cluster, devices=devices),
        goal="generation",
        workload=work,
        search=planner.Search(rewrites="split", time_limit_s=2.0),
    )
