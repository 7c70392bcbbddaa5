"""Parameters of the rates: where each starts, within which bounds it is fitted, and the file that they make."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from costmodels.generation.rates import COUNTED, LINKED, PACED, SHARES, Family, ServingEngine, prices_of
from costmodels.generation.work import BLOCKS, CLASSES, EIGHT, FOUR, HALF, INTEGERS

Values: TypeAlias = dict[str, float]
NEVER = 1e-9  # seconds of what an engine does not do

LOCAL, SERVING = ("llama-cpp-2024", "llama-cpp"), ("vllm", "sglang", "trtllm")


class Parameter(NamedTuple):
    """The start of a parameter, and its bounds."""

    start: float
    low: float
    high: float


class Kind(NamedTuple):
    """A family as the file has it: its engines, and how the names of its devices begin."""

    name: str
    engines: tuple[str, ...]
    devices: tuple[str, ...]
    source: str


LOCAL_SOURCES = (
    "tests/benchmarks/language_models: llama.cpp discussions 4167 and 15013, benches/dgx-spark.md, and "
    "XiongjieDai/GPU-Benchmarks-on-LLM-Inference"
)
SERVED_SOURCES = "tests/benchmarks/language_models: silicon_sample.csv of ai-dynamo/aiconfigurator (Apache-2.0)"

PROCESSORS = ("Xeon", "EPYC", "Core", "Ryzen", "Threadripper")

LOCAL_KINDS = (
    Kind("nvidia", LOCAL, ("RTX", "A10", "A40", "L4", "L40", "T4", "P40", "GeForce", "GTX"), LOCAL_SOURCES),
    Kind("nvidia-datacentre", LOCAL, ("A100", "H100", "H200", "B200", "V100", "P100"), LOCAL_SOURCES),
    Kind("nvidia-unified", LOCAL, ("GB10",), LOCAL_SOURCES),
    Kind("apple", LOCAL, ("Apple",), LOCAL_SOURCES),
    Kind("apple-two-dies", LOCAL, ("Apple-M1-Ultra", "Apple-M2-Ultra", "Apple-M3-Ultra"), LOCAL_SOURCES),
    Kind(
        "processors",
        LOCAL,
        PROCESSORS,
        f"{LOCAL_SOURCES}; ik_llama.cpp pull request 534",
    ),
)
SERVING_KINDS = (
    Kind("hopper", SERVING, ("H100", "H200"), SERVED_SOURCES),
    Kind("blackwell", SERVING, ("B200", "B300", "GB200", "GB300"), SERVED_SOURCES),
)
LIKE = (
    ("gpus", LOCAL, (), "nvidia"),
    ("gpus of servers", SERVING, ("A100", "L40", "L4", "RTX", "A10", "A40", "V100", "MI300X"), "hopper"),
    ("processors of servers", SERVING, PROCESSORS, "processors"),
)
"""Families that nobody measured: name, engines, devices, and whose figures they have."""

SHARE = Parameter(0.7, 0.03, 0.95)


def served_parameters() -> dict[str, Parameter]:
    """Return the parameters of engines that serve."""
    found = {
        "latent_layer": Parameter(2e-5, 2e-6, 1.5e-4),
        "selecting_layer": Parameter(2e-5, 2e-6, 1.5e-4),
        "recurrent_layer": Parameter(1e-5, 2e-6, 1.5e-4),
        "reduce": Parameter(5e-6, 1e-6, 1e-4),
        "reduce_member": Parameter(1.5e-6, 1e-7, 3e-5),
        "far_reduce": Parameter(5e-5, 2.5e-6, 1e-3),
        "exchange": Parameter(3e-5, 1.5e-6, 6e-4),
        "reduced": Parameter(0.5, 0.03, 0.95),
        "far_reduced": Parameter(0.3, 0.03, 0.95),
        "exchanged": Parameter(0.5, 0.03, 0.95),
        "few_rows": Parameter(0.7, 0.2, 1.2),
        "attention": Parameter(0.5, 0.03, 0.95),
        "prompt_attention": Parameter(0.5, 0.03, 0.95),
        "values": Parameter(20.0, 4.0, 40.0),
        "blackwell.pace": Parameter(0.7, 0.4, 1.0),
    }
    for engine in SERVING:
        found |= {
            f"{engine}.layer": Parameter(2e-5, 2e-6, 1.5e-4),
            f"{engine}.expert_layer": Parameter(2e-5, 2e-6, 1.5e-4),
            f"{engine}.step": Parameter(3e-4, 5e-5, 3e-3),
            f"{engine}.sequence": Parameter(5e-6, 1e-6, 2e-5),
            f"{engine}.prompt": Parameter(1e-3, 5e-5, 2e-2),
        }
    for kind in SERVING_KINDS:
        found |= {f"{kind.name}.{key}": Parameter(0.8, 0.2, 0.95) for key in ("weights", "experts", "cache")}
        found |= {f"{kind.name}.products {each}": SHARE for each in (HALF, EIGHT)}
        found |= {f"{kind.name}.products {FOUR}": SHARE._replace(start=0.3)}
        found |= {f"{kind.name}.products {INTEGERS}": SHARE._replace(start=0.2)}
    return found


SERVED_FIXED: Values = {"hop": 2e-5, "crossing": 5e-5, "hopper.pace": 1.0, "unpacking": 0.0}


def local_parameters() -> dict[str, Parameter]:
    """Return the parameters of llama.cpp."""
    found = {
        "llama-cpp-2024.layer": Parameter(9e-5, 1e-5, 9e-4),
        "llama-cpp.layer": Parameter(6e-5, 6e-6, 6e-4),
        "expert_layer": Parameter(1e-5, 1e-6, 1e-4),
        "hop": Parameter(5e-4, 5e-5, 5e-3),
        "few_rows": Parameter(1.0, 0.2, 1.5),
        "prompt": Parameter(2e-3, 2e-4, 2e-2),
    }
    for kind in LOCAL_KINDS[:-1]:
        apple, server = kind.name.startswith("apple"), kind.name == "nvidia-datacentre"
        products = 0.9 if kind.name == "nvidia" else 0.7
        found |= {
            f"{kind.name}.weights": Parameter(0.85, 0.3, 0.97),
            f"{kind.name}.products {HALF}": Parameter(products, 0.03, 1.3),
            f"{kind.name}.products {INTEGERS}": Parameter(0.2 if server else products, 0.03, 1.3),
            f"{kind.name}.products {BLOCKS}": Parameter(0.2 if server else 0.6, 0.03, 1.3),
            f"{kind.name}.products {FOUR}": Parameter(0.4, 0.03, 1.3),
            f"{kind.name}.unpacking": Parameter(2.0, 0.01, 40.0),
        }
        if kind.name != "nvidia":
            found |= {f"{kind.name}.pace": Parameter(1.8 if apple else 1.0, 0.3, 4.0)}
        for engine in LOCAL:
            new = engine == "llama-cpp"
            found |= {
                f"{engine}.{kind.name}.cache": Parameter(0.6 if new else 0.15 if apple else 0.25, 0.02, 0.97),
                f"{engine}.{kind.name}.prompt_attention": Parameter(0.3 if new else 0.12, 0.02, 0.97),
            }
    return found


LOCAL_FIXED: Values = {
    **dict.fromkeys(("latent_layer", "selecting_layer", "recurrent_layer", "step", "sequence"), NEVER),
    "reduce": 2e-5,
    "reduce_member": 2e-6,
    "far_reduce": 1e-3,
    "exchange": 1e-4,
    "reduced": 0.5,
    "far_reduced": 0.5,
    "exchanged": 0.5,
    "attention": 0.5,
    "values": NEVER,
    "nvidia.pace": 1.0,
    **{f"processors.products {each}": 0.3 for each in CLASSES},
    "crossing": 5e-5,
    "processors.weights": 0.42,
    "processors.pace": 0.5,
    "processors.unpacking": 1.0,
    "processors.cache": 0.4,
    "processors.prompt_attention": 0.1,
}
"""What no such measurement shows: llama.cpp's split by rows; and processors, for which ik_llama.cpp's pull request 534
has decode of a dense model on a Xeon at 0.41 (IQ3_K) and 0.44 (Q4_0) of the bandwidth; the rest is as usual."""


def value(values: Mapping[str, float], engine: str, kind: str, key: str) -> float:
    """Return a parameter: of an engine on a kind of device, of the engine, of the kind, or of all."""
    for name in (f"{engine}.{kind}.{key}", f"{engine}.{key}", f"{kind}.{key}", key):
        if name in values:
            return values[name]
    return 0.5


def engine_of(values: Mapping[str, float], name: str) -> ServingEngine:
    """Return an engine with these parameters."""
    seconds = {key: value(values, name, "", key) for key in (*PACED.values(), *COUNTED.values())}
    shares = {key: value(values, name, "", key) for key in LINKED.values()}
    local = name in LOCAL
    fused = name != "llama-cpp-2024"
    return ServingEngine(name, seconds, shares, 512 if local else 2048, True, fused, not local, (1.0, 1.0), (1.0, 1.0))


def family_with(values: Mapping[str, float], engine: str, kind: Kind) -> Family:
    """Return a family with these parameters."""
    keys = (*SHARES.values(), "few_rows", "values", "unpacking", "pace")
    figures = {
        key: value(values, engine, kind.name, "weights" if key == "experts" and engine in LOCAL else key)
        for key in keys
    }
    products = {each: value(values, engine, kind.name, f"products {each}") for each in CLASSES}
    return Family(kind.name, kind.engines, kind.devices, figures, products)


def prices(values: Mapping[str, float], engine: str, kind: Kind) -> dict[str, float]:
    """Return the prices of an engine on a kind of device."""
    return prices_of(engine_of(values, engine), family_with(values, engine, kind))


def kind_of(device: str, kinds: Sequence[Kind]) -> Kind:
    """Return the kind of a device by the longest beginning of its name."""
    return max(
        kinds, key=lambda kind: max((len(start) for start in kind.devices if device.startswith(start)), default=0)
    )


Ranges: TypeAlias = Mapping[str, tuple[tuple[float, float], tuple[float, float]]]
"""For each engine the factors of measured times of a token, and of a prompt, between which 80 % lie."""

HEAD = """\
# Rates of engines that generate text: seconds of each start, and shares of the peaks on data sheets.
#
# `python -m tests.benchmarks.language_models --fit` writes this file. Engines' `layer` and the like are multiplied by
# the `pace` of a family. `few_rows` is the share that products of a few rows reach of what those of many reach;
# `values` are passes over what lies between the products; `unpacking` are operations for each weight of a format with
# blocks of blocks.
# `decode_range` and `prefill_range`: 80 % of the measured times lie between these factors of those predicted.
# A family that is `like` another was measured by nobody: its figures are estimated.
"""


def rates_text(local: Mapping[str, float], served: Mapping[str, float], ranges: Ranges) -> str:
    """Return the text of rates.toml."""
    lines = [HEAD]
    for name in (*LOCAL, *SERVING):
        values, source = (local, LOCAL_SOURCES) if name in LOCAL else (served, SERVED_SOURCES)
        engine = engine_of(values, name)
        lines += [f"[engine.{name}]", f'source = "{source}"']
        lines += [f"chunk_tokens = {engine.chunk_tokens}", f"overlaps = {_word(engine.overlaps)}"]
        lines += [f"fused_attention = {_word(engine.fused_attention)}", f"batches = {_word(engine.batches)}"]
        lines += [f'{key} = "{_digits(seconds * 1e6)} us"' for key, seconds in engine.seconds.items()]
        lines += [f"{key} = {_digits(share)}" for key, share in engine.shares.items()]
        for key, (low, high) in zip(("decode_range", "prefill_range"), ranges[name], strict=True):
            lines += [f"{key} = [{_digits(low)}, {_digits(high)}]"]
        lines += [""]
    for kind in LOCAL_KINDS:
        for engine_name in LOCAL:
            lines += _family_lines(local, engine_name, kind._replace(engines=(engine_name,)))
    for kind in SERVING_KINDS:
        lines += _family_lines(served, SERVING[0], kind)
    for name, engines, devices, other in LIKE:
        for engine_name in engines if engines == LOCAL else ("",):
            own = (engine_name,) if engine_name else engines
            like = _named(other, engine_name) if other != "processors" else _named(other, "llama-cpp")
            lines += ["[[family]]", f'name = "{_named(name, engine_name)}"', f"engines = {_list(own)}"]
            lines += [f"devices = {_list(devices)}", f'like = "{like}"', 'source = "estimated"', ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _family_lines(values: Mapping[str, float], engine: str, kind: Kind) -> list[str]:
    family = family_with(values, engine, kind)
    name = _named(kind.name, engine if engine in LOCAL else "")
    lines = ["[[family]]", f'name = "{name}"', f'source = "{kind.source}"', f"engines = {_list(kind.engines)}"]
    lines += [f"devices = {_list(kind.devices)}"]
    lines += [f"{key} = {_digits(figure)}" for key, figure in family.figures.items()]
    products = ", ".join(f'"{each}" = {_digits(share)}' for each, share in family.products.items())
    return [*lines, f"products = {{ {products} }}", ""]


def _named(name: str, engine: str) -> str:
    return f"{name} in 2024" if engine == "llama-cpp-2024" else name


def _digits(number: float) -> str:
    return f"{number:.4g}"


def _word(truth: bool) -> str:
    return str(truth).lower()


def _list(words: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{word}"' for word in words) + "]"
