"""The arguments of Megatron-LM's pretrain_gpt.py that describe a network, and families that they cannot describe.

Source: https://github.com/NVIDIA/Megatron-LM, megatron/training/arguments.py, core r0.14.
"""

from collections.abc import Iterator, Mapping

from costmodels.architecture import Architecture
from planner.parallelism.closed_form.transformer import RMS_NORM, Transformer
from planner.plans.exported import refuse

MEGATRON = "megatron-args"

FAMILIES = frozenset({"gpt2", "gpt_bigcode", "gpt_neox", "llama", "mistral", "qwen2", "qwen3", "starcoder2", "phi3"})
"""Families with Megatron-LM's layers: norms before attention and before the feed-forward part, nothing scaled."""

PARALLEL = "an attention and a feed-forward part that read the same values"
OTHER_PARTS: Mapping[str, str] = {
    **dict.fromkeys(("bloom", "mpt"), "positions by distance (ALiBi)"),
    **dict.fromkeys(("falcon", "gptj", "codegen", "phi", "cohere", "cohere2"), PARALLEL),
    **dict.fromkeys(
        ("gemma", "gemma2", "gemma3_text", "vaultgemma"), "gates of GELU, scaled words, and norms around 1"
    ),
    "olmo": "norms without parameters",
    **dict.fromkeys(("olmo2", "olmo3", "glm4", "exaone4"), "norms after each part"),
    "granite": "scaled residuals",
    "opt": "the activation 'relu'",
    "gpt_neo": "scores that are not scaled",
    "nemotron": "norms around 1",
    "stablelm": "gates together with norms that shift",
    **dict.fromkeys(("bert", "megatron-bert", "roberta"), "attention to later tokens"),
}
"""The parts of other families for which there is no argument, or none that this planner writes."""

GATES = ("silu", "swish")  # of --swiglu
EXACT_GELU = "gelu"
SCALED_ROTATION = "llama3"
TANH_GELU = frozenset({"gelu_new", "gelu_pytorch_tanh", "gelu_fast"})
"""The approximation by tanh, which Megatron-LM's fused GELU computes."""

HEAD_NORMS = frozenset({"qwen3"})  # families that normalise queries and keys, head by head


def megatron_network(network: Transformer) -> Iterator[str]:
    """Yield the arguments; raise InputError if they cannot describe the network."""
    own = network.architecture
    if own is not None:
        _check_family(network, own)
    yield f"--num-layers {network.layers}"
    yield f"--hidden-size {network.hidden}"
    yield f"--ffn-hidden-size {network.ffn}"
    yield f"--num-attention-heads {network.heads}"
    positions = (network.positions and network.position_rows) or network.sequence
    flags = {
        f"--group-query-attention --num-query-groups {network.kv_heads}": network.kv_heads != network.heads,
        f"--kv-channels {network.head_dim}": network.attention_values != network.hidden,
        f"--seq-length {network.sequence} --max-position-embeddings {positions}": True,
        f"--vocab-size {network.vocabulary}": True,
        "--swiglu": network.gated,
        "--normalization RMSNorm": network.norm_vectors == RMS_NORM,
        "--disable-bias-linear": not network.biases,
        "--add-qkv-bias": network.qkv_biases,
        "--untie-embeddings-and-output-weights": network.untied,
        "--position-embedding-type rope": not network.positions,
        f"--window-size {network.window - 1},0": 0 < network.window < network.sequence,  # besides the token itself
        "--attention-dropout 0 --hidden-dropout 0": own is None and not network.dropout,
        "--use-flash-attn": network.flash,
    }
    yield from (flag for flag, holds in flags.items() if holds)
    if own is not None:
        yield from _details(network, own)


def _details(network: Transformer, own: Architecture) -> Iterator[str]:
    """Yield the arguments of a config that are no sizes."""
    yield f"--norm-epsilon {own.norm_epsilon!r}"
    yield f"--attention-dropout {own.attention_dropout!r} --hidden-dropout {own.hidden_dropout!r}"
    flags = {
        f"--rotary-base {own.rotary_base:.0f} --rotary-percent {own.rotary_share!r}": not network.positions,
        f"--use-rope-scaling --rope-scaling-factor {own.rotary_factor!r}": own.rotary_scaling == SCALED_ROTATION,
        "--qk-layernorm": own.model_type in HEAD_NORMS,
        "--no-bias-gelu-fusion": own.activation == EXACT_GELU,
    }
    yield from (flag for flag, holds in flags.items() if holds)


def _check_family(network: Transformer, own: Architecture) -> None:
    """Check that the layers of a family are Megatron-LM's.

    Raises:
        InputError: if not; the error names the part that differs.
    """
    activations = GATES if network.gated else (*TANH_GELU, EXACT_GELU)
    unknown = own.model_type not in FAMILIES
    gates = "gates of " if network.gated else ""
    other = (
        (unknown, OTHER_PARTS.get(own.model_type, "layers that are not known to be Megatron-LM's")),
        (own.parallel_parts, PARALLEL),
        (own.other_biases, "biases of some products"),
        (own.activation not in activations, f"{gates}the activation '{own.activation}'"),
        (own.activation in TANH_GELU and not network.biases, "GELU by tanh without biases"),
        (not (network.positions or own.rotary_base), "positions that are neither learned nor rotated"),
        (own.rotary_scaling not in ("default", SCALED_ROTATION), f"rotations scaled as '{own.rotary_scaling}'"),
    )
    found = next((part for holds, part in other if holds), None)
    if found is not None:
        reason = f"the network is of the family '{own.model_type}' and has {found}"
        raise refuse(MEGATRON, reason, "has no argument for it", "take a row for planner run, or another target")
