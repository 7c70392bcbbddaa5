"""GenerationQuestion: a language model, devices, and the sequences that they hold; checked before any search."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from costmodels.cluster.cluster import Cluster, Device
from costmodels.generation.memory import compute_bytes
from costmodels.generation.rates import ServingEngine, engine_named, family_of
from costmodels.generation.work import LayerWork, works_of
from costmodels.language_model.formats import FORMATS, WeightFormat, format_named
from costmodels.language_model.model import PASSIVE, ModelDescription
from graphs.common.brief import Brief
from graphs.common.checks import instance, integer
from graphs.common.errors import InputError, nearest

LOCAL_ENGINE, SERVING_ENGINE = "llama-cpp", "vllm"
CACHE_FORMATS: Mapping[str, float] = {"float16": 2.0, "bfloat16": 2.0, "q8_0": 34 / 32, "fp8": 1.0, "q4_0": 18 / 32}
"""Bytes of a cached value, scales included."""
CACHE_NAMES = {"f16": "float16", "fp16": "float16", "bf16": "bfloat16", "float8_e4m3fn": "fp8", "8-bit": "q8_0"}
PROMPT, OUTPUT = 512, 256  # tokens of a request, unless asked otherwise
DEFAULT_CONTEXT = 8192
ASKED = ("context", "sequences", "weights", "cache", "prompt", "output", "engine")
"""Names of what a question may ask for."""


@dataclass(frozen=True)
class GenerationQuestion(Brief):
    """Ask for a division of a language model.

    Attributes:
        model: the model, with the weights that it is asked in.
        cluster: the devices.
        engine: what serves it.
        context: tokens that every sequence has room for.
        sequences: at once.
        cache: format of the cache of keys and values, by a name of `CACHE_FORMATS`.
        prompt: tokens of a request.
        output: tokens that a request generates.

    Raises:
        InputError: for a count below 1, a request that is longer than the context, or weights in a format that the
            engine does not compute in.
    """

    model: ModelDescription
    cluster: Cluster
    engine: ServingEngine
    context: int
    sequences: int = 1
    cache: str = "float16"
    prompt: int = PROMPT
    output: int = OUTPUT

    def __post_init__(self) -> None:
        for name in ("context", "sequences", "prompt", "output"):
            integer(getattr(self, name), f"the {name}", 1)
        if self.prompt + self.output > self.context:
            raise InputError(
                f"a prompt of {self.prompt:,} tokens and {self.output:,} generated ones are more than the context of "
                f"{self.context:,}; ask for a context of {self.prompt + self.output:,}, or shorter requests"
            )
        refused = next(
            (
                (name, tensor.format)
                for name, tensor in self.model.named_tensors()
                if tensor.part not in PASSIVE and not _computes(self.engine, tensor.format)
            ),
            None,
        )
        if refused is not None:
            near = "awq, fp8 or bf16" if self.engine.batches else "q4_K, q8_0 or f16"
            raise InputError(
                f"{self.engine.name} does not compute in {refused[1].name} (the tensor '{refused[0]}'); the "
                f"nearest that works: --weights {near}"
            )

    @property
    def value_bytes(self) -> float:
        """Bytes of a cached value."""
        return CACHE_FORMATS[self.cache]

    @cached_property
    def works(self) -> tuple[LayerWork, ...]:
        """The layers with their sizes; equal ones are one object."""
        return works_of(self.model)

    @property
    def heads(self) -> tuple[int, ...]:
        """The heads of every attention, which the devices of a tensor-parallel group divide among them."""
        return tuple(
            heads for work in self.works for mixer in work.layer.mixers if (heads := getattr(mixer, "heads", 0))
        )

    @cached_property
    def buffer_bytes(self) -> float:
        """Bytes of compute buffers on each device."""
        return compute_bytes(self.model, self.engine.chunk_tokens, 0 if self.engine.fused_attention else self.context)

    @property
    def length(self) -> int:
        """Tokens of a sequence half-way through its answer."""
        return self.prompt + self.output // 2

    @property
    def beyond_training(self) -> bool:
        """Whether the context is longer than what the model was trained for."""
        return 0 < self.model.trained_tokens < self.context


def generation_question(model: ModelDescription, cluster: Cluster, **asked: object) -> GenerationQuestion:
    """Return a question with what is not asked filled in.

    Args:
        model: the model.
        cluster: the devices.
        asked: ``context``, ``sequences``, ``weights``, ``cache``, ``prompt``, ``output`` and ``engine``; None for the
            usual: a context of 8,192 tokens or what the model was trained for, one sequence, the file's own weights, a
            cache of 16 bits, prompts of 512 tokens with 256 generated, llama-cpp.

    Raises:
        InputError: for an unknown name, or what `GenerationQuestion` refuses.
    """
    strange = next((key for key in asked if key not in ASKED), None)
    if strange is not None:
        raise InputError(f"there is no argument '{strange}'; known: {', '.join(ASKED)}{nearest(strange, ASKED)}")
    known = {key: value for key, value in asked.items() if value is not None}
    for key in ("weights", "cache", "engine"):
        instance(known.get(key, ""), str, f"the argument '{key}'", "a name")
    weights, cache = known.get("weights"), known.get("cache", "float16")
    if weights is not None:
        model = model.with_weights(format_named(str(weights), "--weights"))
    engine = engine_named(str(known.get("engine", LOCAL_ENGINE)))
    context = known.get("context")
    if context is None:
        context = min(DEFAULT_CONTEXT, model.trained_tokens or DEFAULT_CONTEXT)
    context = integer(context, "the context", 1)
    prompt = known.get("prompt", min(PROMPT, max(1, context * 2 // 3)))
    output = known.get("output", min(OUTPUT, max(1, context - integer(prompt, "the prompt", 1))))
    return GenerationQuestion(
        model,
        cluster,
        engine,
        context,
        integer(known.get("sequences", 1), "the number of sequences", 1),
        cache_named(str(cache)),
        integer(prompt, "the prompt", 1),
        integer(output, "the output", 1),
    )


def cache_named(name: str) -> str:
    """Return a format of the cache by its name.

    Raises:
        InputError: for an unknown one.
    """
    found = CACHE_NAMES.get(name.casefold(), name.casefold())
    if found not in CACHE_FORMATS:
        raise InputError(f"--cache is '{name}', which no cache has; known: {', '.join(CACHE_FORMATS)}")
    return found


def is_processor(device: Device) -> bool:
    """Return whether a device is a host's processors rather than a GPU."""
    if device.is_processor is not None:
        return device.is_processor
    family, _ = family_of(LOCAL_ENGINE, device)  # by its name
    return family.name.startswith("processors")


def _computes(engine: ServingEngine, weights: WeightFormat) -> bool:
    """Return whether an engine computes in a format."""
    ggml = weights.name.startswith(("q", "iq", "tq")) and weights.name in FORMATS
    return not ggml if engine.batches else ggml or weights.kind == "float"
