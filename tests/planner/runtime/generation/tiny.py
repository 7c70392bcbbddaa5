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
BOTH = {  # of an encoder and a decoder
    "d_model": 32,
    "vocab_size": WORDS,
    "pad_token_id": 0,
    "eos_token_id": 2,
    **{f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in (("layers", 2), ("ffn_dim", 48))},
    **{f"{part}_attention_heads": 4 for part in ("encoder", "decoder")},
}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": WORDS}
AUDIO = {"decoder_start_token_id": 3, "max_source_positions": 6, "num_mel_bins": 8, "max_target_positions": 64}
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
        "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5, decoder_start_token_id=0)),
        "bart": lambda: hf.BartForConditionalGeneration(
            hf.BartConfig(**BOTH, max_position_embeddings=64, forced_eos_token_id=None, decoder_start_token_id=2)
        ),
        "whisper": lambda: hf.WhisperForConditionalGeneration(
            hf.WhisperConfig(**BOTH, **AUDIO, **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens")))
        ),
    }[family]()
    if built.config.is_encoder_decoder:
        return distinct(built.eval())
    for parameter in built.parameters():
        parameter.data *= 3 if parameter.dim() > 1 else 1
    return built.eval()


def distinct(built: Any) -> Any:
    """A model with an encoder and weights by which a continuation follows from its source and has several tokens."""
    for name, parameter in built.named_parameters():
        if parameter.dim() > 1:
            size = (
                4.0 if "shared" in name or "embed" in name else 1.0 if "bias" in name else parameter.shape[-1] ** -0.5
            )
            parameter.data = torch.randn(parameter.shape) * size
    head = built.get_output_embeddings()
    head.weight = torch.nn.Parameter(torch.randn(head.weight.shape))
    return built


@cache
def imported(family: str) -> GenerationProgram:
    """The model for two rows; the llama may attend to 16 positions alone, and T5's encoder reads all at once."""
    lengths = (16,) if family == "llama" else ()
    chunks = () if family == "t5" else (8,)
    return planner.generation_program(module(family), rows=2, context=CONTEXT, chunks=chunks, lengths=lengths)


@cache
def expected(family: str) -> list[list[int]]:
    """The continuations of the prompts by transformers' own generate, one prompt at a time."""
    options = {"max_new_tokens": MORE, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    model = module(family)
    if model.config.is_encoder_decoder:
        plain = hf.GenerationMixin.generate  # Whisper's own cuts audio into windows
        return [
            plain(model, **{model.main_input_name: torch.as_tensor(one)[None]}, **options)[0, 1:].tolist()
            for one in sources(family)
        ]
    return [module(family).generate(torch.tensor([p]), **options)[0, len(p) :].tolist() for p in PROMPTS]


def sources(family: str) -> list[Any]:
    """What the encoder of a model reads: the prompts, or as many sounds."""
    if family != "whisper":
        return PROMPTS
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(8, 12, generator=generator) for _ in PROMPTS]


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
def split_plan(family: str, n_devices: int = 2) -> Plan:
    """The plan for one group of two sequences on equal devices that read weights slowly: operators are split."""
    cluster = desk(n_devices)
    devices = tuple(replace(device, memory_bytes_per_s=1e7, launch_s=1e-6) for device in cluster.devices)
    work = planner.OpenWorkload(prompt=20, output=MORE, sequences=2, rows=2, context=CONTEXT)
    return planner.plan(
        imported(family),
        cluster=replace(cluster, devices=devices),
        goal="generation",
        workload=work,
        search=planner.Search(rewrites="split", time_limit_s=2.0),
    )
