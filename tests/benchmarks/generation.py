"""Generation: tokens compared with transformers' `generate`, bytes of caches, tokens a second, a long stream.

    python -m tests.benchmarks.generation [FAMILY ...] [--part PART ...] [--quick] [--json FILE]

``families``: tiny models with random weights, cut between all layers over one, two and three devices, four sequences of
unequal lengths, 64 greedy tokens each. ``speed``: networks of GPT-2's and of a half-billion Llama's shape, one sequence
and four, on one core and on two, in turns with eager `generate` with a static cache on one core. ``stream``: sequences
of random lengths for several callers at once, compared with those that run alone, while the memory is watched.
``times``: predicted against measured seconds to the first token and from token to token, after one calibration each.
"""

import argparse
import random
import resource
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers

import planner
from costmodels.host.affinity import run_on
from costmodels.memory.device import lasting_bytes
from graphs.program.generation import GenerationProgram
from planner.plans.generation import generation_of, paced
from planner.runtime.benchmark.generation import measure_generation, random_prompts
from planner.runtime.benchmark.load import Load
from tests.benchmarks.bars import Bar, at_least, at_most, declare, report
from tests.planner.runtime.generation.tiny import cut, distinct
from tests.planner.runtime.small import cpu

hf: Any = transformers
WORDS = 61
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": WORDS,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
WINDOW = {"sliding_window": 6}
PLAIN = ("llama", "qwen2", "qwen3", "gemma", "phi", "phi3", "gpt_neox", "olmo", "olmo2", "granite", "stablelm", "gpt2")
FAMILIES: dict[str, dict[str, Any]] = {
    **{family: {} for family in (*PLAIN, "starcoder2", "cohere", "nemotron", "helium", "ernie4_5", "glm4")},
    **dict.fromkeys(("mistral", "gemma2", "gemma3_text", "cohere2", "exaone4"), WINDOW),
    "mixtral": EXPERTS,
    "qwen3_moe": EXPERTS,
    "olmoe": EXPERTS,
    "granitemoe": EXPERTS,
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 16},
    "gpt_oss": {**EXPERTS, **WINDOW},
    "deepseek_v2": {**LATENT, **ROUTED, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1},
    "deepseek_v3": {**LATENT, **ROUTED, "num_key_value_heads": 4, "n_group": 2, "topk_group": 1},
    "glm4_moe": {**ROUTED, "n_group": 1, "topk_group": 1},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "bloom": {"n_head": 4, "n_layer": 2},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2, "head_dim": None},
    "gptj": {"rotary_dim": 4},
    "mamba": {"state_size": 4, "tie_word_embeddings": False},
}
LAYERS = {"num_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "d_model": 32, "d_kv": 8, "d_ff": 48}
BOTH = {
    "d_model": 32,
    **{f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in (("layers", 2), ("ffn_dim", 48))},
    **{f"{part}_attention_heads": 4 for part in ("encoder", "decoder")},
    "forced_eos_token_id": None,
    "eos_token_id": 2,
}
ENCODERS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("t5", "mt5", "umt5"), LAYERS),
    **dict.fromkeys(("bart", "mbart", "marian", "pegasus", "blenderbot", "m2m_100", "plbart"), BOTH),
}
QUICK = ("llama", "gemma2")
PARTS = ("families", "speed", "stream", "times")
PROMPTS = [[7, 3, 9], [5] * 19, [11], list(range(20, 33))]
MORE, CONTEXT, CHUNK = 64, 96, 16
GREEDY = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
LLAMA = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 151_936,
    "tie_word_embeddings": True,
}
OPT = {"num_hidden_layers": 4, "num_attention_heads": 8, "max_position_embeddings": 512, "pad_token_id": 0}
PROMPT, ROUNDS = 64, 3
ONE_OVER_EAGER, TWO_OVER_ONE, GROWN, OFF = 1.5, 1.6, 0.02, 0.1
KINDS, LONGEST, CALLERS = 50, 24, 4  # of a stream: prompts, tokens after one, threads


def tiny(family: str) -> Any:
    """Return a tiny model with weights that are large enough for logits to be apart."""
    torch.manual_seed(0)
    if family in ENCODERS:
        own = {"vocab_size": WORDS, "pad_token_id": 0, "decoder_start_token_id": 0, "max_position_embeddings": 128}
        config = hf.AutoConfig.for_model(family, **own, **ENCODERS[family])
        return distinct(hf.AutoModelForSeq2SeqLM.from_config(config).eval())
    sizes = {name: size for name, size in {**SIZES, **FAMILIES[family]}.items() if size is not None}
    config = hf.AutoConfig.for_model(family, **sizes)
    model = hf.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        parameter.data *= 3 if parameter.dim() > 1 else 1
    return model


def families(names: Sequence[str]) -> Iterator[Bar]:
    """Compare the tokens of each family, and the bytes of its caches."""
    right, exact = 0, 0
    for family in names:
        model = tiny(family)
        expected = [
            model.generate(torch.tensor([one]), max_new_tokens=MORE, **GREEDY)[
                0, 1 if family in ENCODERS else len(one) :
            ].tolist()
            for one in PROMPTS
        ]
        program = imported(model)
        equal, held = [], True
        for n_devices in (1, 2, 3):
            plan = cut(program, n_devices)
            with planner.GenerationRunner(plan, program) as runner:
                found = runner.generate(PROMPTS, MORE, stops=[])
                equal.append(sum(one == other for one, other in zip(found, expected, strict=True)))
                caches = [cache for device in plan.cluster.devices for cache in runner.caches(device.name)]
                allocated = sum(tensor.nbytes for cache in caches for tensor in cache.values())
                held = held and allocated == plan.workload.in_flight * int(lasting_bytes(plan.graph).sum())
        right, exact = right + (equal == [len(PROMPTS)] * 3), exact + held
        print(f"{family:14} sizes {program.sizes}, rows {program.rows}: equal {equal} of {len(PROMPTS)}", flush=True)
    yield at_least("families whose tokens are transformers'", right, len(names))
    yield at_least("families whose caches have the planned bytes", exact, len(names))


def imported(model: Any) -> GenerationProgram:
    """Import a model for two rows, or for one if all rows would have to be at one position."""
    try:
        return planner.generation_program(model, rows=2, context=CONTEXT, chunks=(CHUNK,))
    except planner.InputError as error:
        if "rows=1" not in str(error):
            raise
        return planner.generation_program(model, rows=1, context=CONTEXT, chunks=(CHUNK,))


def speed(quick: bool) -> Iterator[Bar]:
    """Measure tokens a second in turns."""
    for name, dtype in (
        ("gpt2", torch.float32),
        ("gpt2", torch.bfloat16),
        ("llama", torch.float32),
        ("llama", torch.bfloat16),
    ):
        if quick and (name, dtype) != ("gpt2", torch.float32):
            continue
        torch.manual_seed(0)
        model = hf.GPT2LMHeadModel(hf.GPT2Config()) if name == "gpt2" else hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA))
        yield from _turns(f"{name} {str(dtype).removeprefix('torch.')}", model.eval().to(dtype), 16 if quick else 48)


def _turns(name: str, model: Any, more: int) -> Iterator[Bar]:
    prompts = [[(17 * row + number) % 30_000 for number in range(PROMPT)] for row in range(4)]
    ids = torch.tensor(prompts)
    context = PROMPT + more + 16
    one, two = (planner.generation_program(model, rows=rows, context=context, chunks=(PROMPT,)) for rows in (1, 2))
    four = planner.generation_program(model, rows=4, context=context, chunks=(PROMPT,))
    plans = {
        "one": (one, planned(one, 1, more)),
        "four": (four, planned(four, 1, more)),
        "groups on two": (two, planned(two, 2, more)),
        "four on two": (four, planned(four, 2, more)),
    }
    runners = {each: planner.GenerationRunner(plan, own, share_weights=True) for each, (own, plan) in plans.items()}
    for each, (_, plan) in plans.items():
        print(f"{each}: {len(plan.stages)} stages, {sent(plan)} messages a pass", flush=True)
    static = {"max_new_tokens": more, "cache_implementation": "static", **GREEDY}

    def eager(rows: int) -> Callable[[], Any]:
        given = {"attention_mask": torch.ones_like(ids[:rows]), **static}
        return lambda: run_on(cpu("eager"), lambda: model.generate(ids[:rows], **given))

    contenders: dict[str, Callable[[], Any]] = {
        "eager one": eager(1),
        "eager four": eager(4),
        "one": lambda: runners["one"].generate(prompts[:1], more, stops=[]),
        "four": lambda: runners["four"].generate(prompts, more, stops=[]),
        "groups on two": lambda: runners["groups on two"].generate(prompts, more, stops=[]),
        "four on two": lambda: runners["four on two"].generate(prompts, more, stops=[]),
    }
    seconds: dict[str, list[float]] = {each: [] for each in contenders}
    for turn in range(ROUNDS + 1):
        for each, run in contenders.items():
            start = time.perf_counter()
            run()
            seconds[each] += [time.perf_counter() - start] if turn else []  # the first turn packs weights
    for runner in runners.values():
        runner.close()
    rate = {each: more * (1 if "one" in each else 4) / median(taken) for each, taken in seconds.items()}
    print(f"{name}: " + ", ".join(f"{each} {found:.1f}" for each, found in rate.items()) + " tokens/s", flush=True)
    yield at_least(f"{name}: one sequence on one core over eager", rate["one"] / rate["eager one"], ONE_OVER_EAGER)
    yield at_least(f"{name}: four sequences on one core over eager", rate["four"] / rate["eager four"], ONE_OVER_EAGER)
    yield at_least(
        f"{name}: four sequences on two cores over one core", rate["four on two"] / rate["four"], TWO_OVER_ONE
    )


def planned(program: GenerationProgram, n_devices: int, more: int) -> planner.Plan:
    """Return a plan for four sequences, or the only one, on some cores; what a core and a message cost is measured."""
    sequences = 1 if program.rows == 1 else 4
    work = planner.OpenWorkload(
        prompt=PROMPT, output=more, sequences=sequences, rows=program.rows, context=program.context
    )
    cluster = planner.calibrate().first(n_devices)
    return planner.plan(
        program, cluster=cluster, goal="generation", workload=work, search=planner.Search(time_limit_s=5.0)
    )


def sent(plan: planner.Plan) -> int:
    """Return how many tensors a pass sends from one device to another."""
    home = plan.placement.device
    return sum(len({home[reader] for reader in flow.readers} - {home[flow.writer]}) for flow in plan.graph.flows)


def stream(count: int) -> Iterator[Bar]:
    """Send sequences of random lengths through two devices for several callers, and watch the memory."""
    draw = random.Random(0)
    model = tiny("llama")
    program = planner.generation_program(model, rows=2, context=CONTEXT, chunks=(CHUNK,))
    prompts = [[draw.randrange(WORDS) for _ in range(draw.randint(1, 40))] for _ in range(KINDS)]
    picked = [(draw.randrange(KINDS), draw.randint(1, LONGEST)) for _ in range(count)]  # a prompt, and how many tokens
    with planner.GenerationRunner(cut(program, 2), program) as runner:
        alone = [runner.generate([prompt], LONGEST, stops=[])[0] for prompt in prompts]
        resident: list[int] = []

        def call(part: Sequence[tuple[int, int]]) -> list[list[int]]:
            left = [more for _, more in part]

            def ends(sequence: int, _token: int) -> bool:
                left[sequence] -= 1
                if left[sequence] == 0:
                    resident.append(resident_bytes())
                return left[sequence] == 0

            return runner.generate([prompts[kind] for kind, _ in part], LONGEST, stops=ends)

        for _ in range(2):  # the first turn warms up
            resident.clear()
            with ThreadPoolExecutor(CALLERS) as callers:
                found = list(chain(*callers.map(call, [picked[caller::CALLERS] for caller in range(CALLERS)])))
    asked = list(chain(*(picked[caller::CALLERS] for caller in range(CALLERS))))
    pairs = list(zip(asked, found, strict=True))
    yield at_most("sequences lost", sum(len(one) != more for (_, more), one in pairs), 0)
    yield at_most(
        "sequences of a stream that differ from those alone", sum(one != alone[k][:n] for (k, n), one in pairs), 0
    )
    quarter = len(resident) // 4
    grown = max(resident[-quarter:]) / max(resident[:quarter]) - 1
    print(f"{count} sequences of {CALLERS} callers: {min(resident) / 2**20:.1f} to {max(resident) / 2**20:.1f} MiB")
    yield at_most("growth of the memory from the first to the last quarter, as a share", grown, GROWN)


def times(quick: bool) -> Iterator[Bar]:
    """Compare predicted with measured times to the first token and for each token, on one core after a calibration."""
    small = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4, "vocab_size": 8000, "head_dim": 64}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 512, "pad_token_id": 0}
    gpt2 = {"n_embd": 512, "n_layer": 4, "n_head": 8, "n_positions": 512, "vocab_size": 8000, "bos_token_id": 0}
    networks: dict[str, dict[str, Any]] = {
        "gpt2": {**gpt2, "eos_token_id": 0},
        "llama": {**small, **heads},
        "qwen3": {**small, **heads, "num_hidden_layers": 6},
        "gemma2": {**small, **heads, "sliding_window": 32},
        "opt": {"hidden_size": 512, "ffn_dim": 2048, "word_embed_proj_dim": 512, "vocab_size": 8000, **OPT},
    }
    work = planner.OpenWorkload(prompt=PROMPT, output=16, sequences=2, rows=2)
    for family, sizes in list(networks.items())[: 1 if quick else None]:
        torch.manual_seed(0)
        model = hf.AutoModelForCausalLM.from_config(hf.AutoConfig.for_model(family, **sizes)).eval()
        program = planner.generation_program(model, rows=2, context=PROMPT + 16, chunks=(16,))
        cluster = planner.calibrate(program).first(1)
        search = planner.Search(time_limit_s=5.0)
        plan = planner.plan(program, cluster=cluster, goal="generation", workload=work, search=search)
        load = Load((), plan)
        with planner.GenerationRunner(plan, program, share_weights=True) as runner:
            prompts = random_prompts(plan, program)
            measured = measure_generation(runner, prompts, 16, 2 if quick else 5, load, lambda *_: None)
        found, foreign = generation_of(plan), load.foreign_cores()
        at_pace = paced(found, plan, load.paces)
        assert measured.token_s is not None
        figures = (
            ("first token", found.first_token_s, at_pace.first_token_s, measured.first_token_s),
            ("token", found.token_s, at_pace.token_s, measured.token_s),
        )
        for name, predicted_s, paced_s, measured_s in figures:
            pace, after = paced_s / predicted_s, measured_s / paced_s - 1
            print(
                f"{family}: {name} predicted {predicted_s * 1e3:.2f} ms, measured {measured_s * 1e3:.2f} ms, pace "
                f"{pace:.2f}, {after:+.1%} after it; others used {foreign:.2f} cores",
                flush=True,
            )
            yield at_most(f"{family}: {name}, error after pace", abs(after), OFF)


def resident_bytes() -> int:
    """Return the bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def main() -> int:
    """Run the parts and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "families", nargs="*", choices=[[], *FAMILIES, *ENCODERS], metavar="FAMILY", help="default: all"
    )
    parser.add_argument("--part", nargs="+", choices=PARTS, help="default: all")
    declare(parser)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    parts = options.part or PARTS
    bars: list[Bar] = []
    if "families" in parts:
        bars += families(options.families or (QUICK if options.quick else (*FAMILIES, *ENCODERS)))
    if "speed" in parts:
        bars += speed(options.quick)
    if "stream" in parts:
        bars += stream(100 if options.quick else 1000)
    if "times" in parts:
        bars += times(options.quick)
    return report(bars, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
