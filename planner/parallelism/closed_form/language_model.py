"""Reads a language model from the content of its config.json, and compares what it read with the network itself.

::

    config.json ──transformers──► network of shapes ──► Transformer ──► parameters in closed form
                                         └─────────────────────────────► parameters, compared part by part

Values that a config leaves out are the defaults of transformers; facts without a field, such as gated products and
biases, follow from the parameters of a layer. A network that the closed form describes wrongly is refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from costmodels.architecture import Architecture
from costmodels.language_model.from_config import model_of_config
from graphs.common.errors import InputError
from planner.parallelism.closed_form.from_description import transformer_of_description
from planner.parallelism.closed_form.mixture import INSTEAD, TWO_STACKS
from planner.parallelism.closed_form.transformer import LAYER_NORM, RMS_NORM, Transformer

MIXTURES = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
HEADS = ("num_attention_heads", "n_heads", "num_heads")
KEY_HEADS = ("num_key_value_heads", "num_kv_heads")
FFN = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "dff")
HIDDEN_DROPOUTS = (
    "resid_pdrop",
    "hidden_dropout_prob",
    "hidden_dropout",
    "residual_dropout",
    "resid_dropout",
    "dropout",
)
ATTENTION_DROPOUTS = ("attn_pdrop", "attention_probs_dropout_prob", "attention_dropout")
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
ACTIVATIONS = ("hidden_activation", "hidden_act", "activation_function", "activation")
PARALLEL = ("use_parallel_residual", "parallel_attn")
LLAMA3_LIMITS = {"low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}
USUAL_TOKENS = 2048
MOST_OFF = 0.005  # of all parameters

Shapes = Mapping[str, tuple[int, ...]]


def language_model_of(document: Mapping[str, Any], sequence: int | None = None, flash: bool = False) -> Transformer:
    """Return the transformer that a config describes; arguments and errors are those of `model_file.transformer_of`."""
    from graphs.importers.from_config import headed_module

    module: Any = headed_module(document)
    config = module.config
    _check_kind(config)
    if _has_experts(config):
        model = model_of_config(document)
        architecture = _architecture(config, other_biases=False)
        dropout = _rate(config, HIDDEN_DROPOUTS) > 0
        return transformer_of_description(model, sequence or document.get("sequence"), flash, architecture, dropout)
    layer = _layer_of(module)
    rows = _position_rows(module, layer.prefix, config)
    tokens = sequence or document.get("sequence") or min(USUAL_TOKENS, rows or USUAL_TOKENS)
    network = _described(module, layer.shapes, rows, tokens, flash)
    _check_parameters(network, module, layer)
    return network


class _Layer(NamedTuple):
    """One of the equal layers of a network."""

    prefix: str  # of the names of all layers
    shapes: Shapes  # of its parameters, by their names within the layer

    @property
    def parameters(self) -> int:
        """How many it has."""
        return sum(map(_size, self.shapes.values()))


def _has_experts(config: Any) -> bool:
    return any((getattr(config, name, None) or 0) > 1 for name in MIXTURES)


def _check_kind(config: Any) -> None:
    """Check that the network is one stack of layers."""
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(TWO_STACKS)
    for name, names in (("layers", ("num_hidden_layers",)), ("heads", HEADS), ("vocabulary", ("vocab_size",))):
        if not isinstance(_first(config, names), int):
            raise InputError(f"the model has no {name}; choose divides language models of equal layers: {INSTEAD}")


def _layer_of(module: Any) -> _Layer:
    """Return the layer that stands for all layers, which have equal parameters.

    Raises:
        InputError: if there is no such stack, or layers differ.
    """
    count = module.config.num_hidden_layers
    stacks = [(name, part) for name, part in module.named_modules() if type(part).__name__ == "ModuleList"]
    stack = next(((name, part) for name, part in stacks if len(part) == count), None)
    if stack is None:
        raise InputError(f"the model has no list of its {count} layers; {INSTEAD}")
    each = [{name: tuple(tensor.shape) for name, tensor in layer.named_parameters()} for layer in stack[1]]
    other = next((number for number, shapes in enumerate(each) if shapes != each[0]), None)
    if other is not None:
        raise InputError(
            f"layer {other} of the model has other parameters than layer 0; choose divides equal layers: {INSTEAD}"
        )
    return _Layer(stack[0] + ".", each[0])


def _position_rows(module: Any, layers: str, config: Any) -> int:
    """Return the number of learned positions: the config's if there is a table of positions, otherwise 0."""
    words = _words(module)
    tables = [
        part
        for name, part in module.named_modules()
        if type(part).__name__.endswith("Embedding") and hasattr(part, "weight") and not name.startswith(layers)
    ]
    most = getattr(config, "max_position_embeddings", None) or 0
    return most if any(table is not words and table.weight.shape[0] >= most for table in tables) else 0


def _words(module: Any) -> Any:
    """Return the embedding of words.

    Raises:
        InputError: if the network takes no words, or has no head that tells them.
    """
    try:
        words, head = module.get_input_embeddings(), module.get_output_embeddings()
    except NotImplementedError:  # as of networks that take audio
        words = head = None
    if words is None or head is None or words.weight.shape[0] != module.config.vocab_size:
        raise InputError(f"'{type(module).__name__}' does not read words and tell words; {INSTEAD}")
    return words


def _described(module: Any, layer: Shapes, rows: int, tokens: int, flash: bool) -> Transformer:
    config = module.config
    hidden, heads = int(config.hidden_size), int(_first(config, HEADS))
    head_dim, kv_heads = getattr(config, "head_dim", None) or hidden // heads, _key_heads(config, heads)
    rest = sum(_size(shape) for shape in layer.values() if len(shape) > 1)
    rest -= 2 * hidden * head_dim * (heads + kv_heads)
    sizes = [size for name in FFN if (size := getattr(config, name, None))] or [4 * hidden]
    ffn, gated = min(
        ((size, gated) for size in sizes for gated in (False, True)),
        key=lambda own: abs(rest - (3 if own[1] else 2) * hidden * own[0]),
    )
    linear = sum(
        _size(layer[name]) for name in layer if name.endswith("bias") and len(layer.get(_weight(name), ())) > 1
    )
    shifts = any(name.endswith("bias") and len(layer.get(_weight(name), ())) == 1 for name in layer)
    qkv = head_dim * (heads + 2 * kv_heads)
    every = qkv + 2 * hidden + ffn * (2 if gated else 1)
    attends, mixed = _window(config, tokens)
    if mixed:
        raise InputError(
            f"only some layers of the model attend to {attends:,} tokens, and a sample has {tokens:,}; choose divides "
            f"equal layers: take --sequence {attends}, or {INSTEAD}"
        )
    return Transformer(
        layers=int(config.num_hidden_layers),
        hidden=hidden,
        heads=heads,
        sequence=tokens,
        vocabulary=int(config.vocab_size),
        ffn=int(ffn),
        kv_heads=kv_heads,
        gated=gated,
        norm_vectors=LAYER_NORM if shifts else RMS_NORM,
        biases=linear == every,
        positions=rows > 0,
        untied=module.get_output_embeddings().weight is not module.get_input_embeddings().weight,
        dropout=_rate(config, HIDDEN_DROPOUTS) > 0,
        flash=flash,
        head_dim=head_dim,
        position_rows=rows,
        qkv_biases=0 < linear < every,
        window=attends,
        architecture=_architecture(config, other_biases=linear not in (0, qkv, every)),
    )


def _key_heads(config: Any, heads: int) -> int:
    """Return the number of heads of keys and values; a config with ``multi_query`` has one."""
    if getattr(config, "multi_query", False) and not getattr(config, "new_decoder_architecture", False):
        return 1
    return int(_first(config, KEY_HEADS) or heads)


def _window(config: Any, tokens: int) -> tuple[int, bool]:
    """Return how many tokens a token attends to, 0 for all, and whether only some of the layers have this window."""
    window = _first(config, ("sliding_window", "window_size"))
    if not isinstance(window, int):
        return 0, False
    kinds = set(getattr(config, "layer_types", None) or getattr(config, "attention_layers", None) or ["sliding"])
    near = {kind for kind in kinds if kind.startswith(("sliding", "local", "chunked"))}
    if not near or window >= tokens:
        return (window if near == kinds else 0), False
    return window, near != kinds


def _architecture(config: Any, other_biases: bool) -> Architecture:
    """Return the parts of a model's description that costs do not depend on."""
    rotary = dict(getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {})
    base = rotary.get("rope_theta") or getattr(config, "rope_theta", None) or getattr(config, "rotary_emb_base", None)
    share = rotary.get("partial_rotary_factor") or _first(config, ("partial_rotary_factor", "rotary_pct"))
    return Architecture(
        model_type=config.model_type,
        activation=str(_first(config, ACTIVATIONS) or ""),
        norm_epsilon=float(_first(config, EPSILONS) or 0.0),
        rotary_base=float(base or 0.0),
        rotary_share=float(share or 1.0),
        rotary_scaling=_rotary_scaling(rotary),
        rotary_factor=float(rotary.get("factor") or 1.0),
        attention_dropout=_rate(config, ATTENTION_DROPOUTS),
        hidden_dropout=_rate(config, HIDDEN_DROPOUTS),
        parallel_parts=any(getattr(config, name, False) for name in PARALLEL),
        other_biases=other_biases,
    )


def _rotary_scaling(rotary: Mapping[str, Any]) -> str:
    """Return how rotary angles are scaled; Llama 3's scaling with other limits has a name of its own."""
    name = str(rotary.get("rope_type") or rotary.get("type") or "default")
    other = any(rotary.get(limit, value) != value for limit, value in LLAMA3_LIMITS.items())
    return f"{name} with other limits" if name == "llama3" and other else name


def _check_parameters(network: Transformer, module: Any, layer: _Layer) -> None:
    """Check that the closed form counts what the network has, in the layers and besides them."""
    have = sum(tensor.numel() for tensor in module.parameters())  # a tensor that is used twice counts once
    own = have - network.layers * layer.parameters
    ends = network.embedding_parameters + network.head_parameters
    in_layers, besides = network.layers * (network.layer_parameters - layer.parameters), ends - own
    if abs(in_layers) + abs(besides) <= MOST_OFF * have:
        return
    gated = "a gated feed-forward part" if network.gated else "a feed-forward part"
    reasons = [
        f"a layer has {layer.parameters:,}, where {network.heads} heads and {network.kv_heads} of keys of "
        f"{network.head_dim} values and {gated} of {network.ffn:,} have {network.layer_parameters:,}",
        f"there are {own:,} besides the layers, where {network.vocabulary:,} words"
        f"{f' and {network.position_rows:,} positions' if network.positions else ''} of {network.hidden:,} values"
        f"{', twice,' if network.untied else ''} have {ends:,}",
    ]
    wrong = [
        reason for reason, off in zip(reasons, (in_layers, besides), strict=True) if abs(off) > MOST_OFF * have / 2
    ]
    raise InputError(
        f"choose would count {network.parameters:,} parameters, and {type(module).__name__} has {have:,} "
        f"({network.parameters / have - 1:+.1%} counted): {'; '.join(wrong)}; {INSTEAD}"
    )


def _first(config: Any, names: Sequence[str]) -> Any:
    """Return the value of the first of these fields that a config has."""
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)


def _rate(config: Any, names: Sequence[str]) -> float:
    return float(_first(config, names) or 0.0)


def _weight(bias: str) -> str:
    return bias.removesuffix("bias") + "weight"


def _size(shape: Sequence[int]) -> int:
    size = 1
    for number in shape:
        size *= number
    return size
