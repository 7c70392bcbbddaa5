"""Turns the tensors of quantised checkpoints into weights with their shape before packing, and their format.

::

    q_proj.qweight  int32   [4096, 512]  ┐
    q_proj.scales   float16 [32, 4096]   ├─►  q_proj.weight  [4096, 4096]  awq 4 bits, groups of 128
    q_proj.qzeros   int32   [32, 512]    ┘

The bytes of the weight are those of the tensors that it is stored in, to the last one.

Sources: AutoAWQ, GPTQModel, bitsandbytes, compressed-tensors, NVIDIA's modelopt, transformers' mxfp4.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from costmodels.language_model.formats import ROW, WeightFormat
from costmodels.language_model.stored_tensor import StoredTensor
from graphs.common.errors import InputError

MAIN = (".qweight", ".weight_packed", "_blocks", ".weight", ".data")
"""Ends of the names of packed values; the first that fits."""

BESIDE = (
    *(".scales", ".qzeros", ".g_idx"),
    *(".weight_scale_inv", ".weight_scale_2", ".weight_scale", ".weight_zero_point", ".weight_g_idx"),
    *(".weight_shape", ".weight_global_scale", ".input_global_scale", ".input_scale", ".k_scale", ".v_scale"),
    *("_scale_inv", "_scales", ".SCB", ".weight_format"),
    *(".weight.absmax", ".weight.quant_map", ".weight.nested_absmax", ".weight.nested_quant_map"),
    *(".weight.quant_state.bitsandbytes__nf4", ".weight.quant_state.bitsandbytes__fp4"),
)
"""Ends of the names of scales, offsets and other companions of packed values."""

SCALES = (".scales", "_scales", ".weight_scale_inv", "_scale_inv", ".weight_scale", ".weight.absmax", ".SCB")


Companions = Mapping[str, StoredTensor]


class PackedAs(NamedTuple):
    """How a checkpoint packs its weights, as its config says."""

    bits: int = 0  # of an element that is packed in int32; 0 if the config does not say
    layout: str = ""  # method, such as "awq", from which the axes of packed weights follow
    hidden: int = 1  # values of a token between layers


def unpacked(tensors: Iterable[StoredTensor], packing: PackedAs) -> tuple[StoredTensor, ...]:
    """Return the weights of the tensors of a checkpoint; plain tensors stay as they are.

    Raises:
        InputError: if packed weights lack their scales, or nothing says how many bits they have.
    """
    tensors = tuple(tensors)
    companions: dict[str, dict[str, StoredTensor]] = defaultdict(dict)
    mains: list[StoredTensor] = []
    for tensor in tensors:
        end = next((end for end in BESIDE if tensor.name.endswith(end)), None)
        if end is None:
            mains.append(tensor)
        else:
            companions[tensor.name.removesuffix(end)][end] = tensor
    return tuple(_weight(main, companions, packing) for main in mains)


def _weight(main: StoredTensor, companions: Mapping[str, Companions], packing: PackedAs) -> StoredTensor:
    end = next((end for end in MAIN if main.name.endswith(end)), "")
    base = main.name.removesuffix(end)
    own = companions.get(base) or {}
    if end == ".qweight":
        return _integers(main, base, own, packing)
    if not own:
        return main
    kind = main.format.name
    if end == "_blocks":  # gpt-oss: [experts, rows, groups, 16 bytes of two values each]
        shape = (*main.shape[:-2], main.shape[-2] * main.shape[-1] * 2)
        return _stored(base, shape, WeightFormat("mxfp4", 4, (main.shape[-1] * 2,), kind="float"), main, own)
    if kind.startswith("float8"):
        return _scaled(main, own)
    if any("quant_state" in name for name in own):
        return _bitsandbytes(main, own, packing.hidden)
    if kind == "int32":
        return _packed_integers(main, base, own, packing.bits)
    if kind == "uint8":
        shape = (*main.shape[:-1], main.shape[-1] * 2)
        scales = _scales(main, own)
        group = shape[-1] // max(1, scales.shape[-1])
        return _stored(
            f"{base}.weight",
            shape,
            WeightFormat("nvfp4" if group == 16 else "mxfp4", 4, (group,), kind="float"),
            main,
            own,
        )
    if kind == "int8":
        return _stored(main.name, main.shape, WeightFormat("int8 rows", 8, (ROW,)), main, own)
    return main


def _integers(main: StoredTensor, base: str, own: Companions, packing: PackedAs) -> StoredTensor:
    """Return the weight of AWQ's or GPTQ's packed integers; AWQ packs outputs, GPTQ inputs, 32 / bits in an int32."""
    bits, layout = packing.bits, packing.layout
    scales = _scales(main, own)
    if not bits:
        raise InputError(f"nothing says how many bits the weights of '{main.name}' have; give the config.json with it")
    if layout == "awq":
        inputs, outputs = main.shape[0], main.shape[1] * 32 // bits
    else:
        inputs, outputs = main.shape[0] * 32 // bits, main.shape[1]
    groups = scales.shape[0]
    group = ROW if groups <= 1 else -(-inputs // groups)
    name = f"{layout or 'gptq'} {bits} bits, {f'groups of {group}' if group else 'rows'}"
    return _stored(f"{base}.weight", (outputs, inputs), WeightFormat(name, bits, (group,)), main, own)


def _packed_integers(main: StoredTensor, base: str, own: Companions, bits: int) -> StoredTensor:
    """Return the weight of compressed-tensors' integers, whose shape gives the bits if it is a whole number of them."""
    if not bits:
        raise InputError(f"nothing says how many bits the weights of '{main.name}' have; give the config.json with it")
    shape = (*main.shape[:-1], main.shape[-1] * 32 // bits)
    groups = _scales(main, own).shape[-1]
    group = ROW if groups <= 1 else -(-shape[-1] // groups)
    name = f"compressed {bits} bits, {f'groups of {group}' if group else 'rows'}"
    return _stored(f"{base}.weight", shape, WeightFormat(name, bits, (group,)), main, own)


def _scaled(main: StoredTensor, own: Companions) -> StoredTensor:
    scales = _scales(main, own).shape
    if len(scales) >= 2 and len(main.shape) >= 2 and scales[-1] > 1:
        group = tuple(_block(axis, count) for axis, count in zip(main.shape[-2:], scales[-2:], strict=True))
        name = f"float8_e4m3fn blocks of {group[0]}x{group[1]}"
        return _stored(main.name, main.shape, WeightFormat(name, 8, group, kind="float"), main, own)
    if prod(scales) > 1 and prod(scales) == prod(main.shape[:-1]):
        return _stored(main.name, main.shape, WeightFormat("float8_e4m3fn rows", 8, (ROW,), kind="float"), main, own)
    return _stored(main.name, main.shape, WeightFormat("float8_e4m3fn tensors", 8, (), kind="float"), main, own)


def _block(axis: int, count: int) -> int:
    """Return the side of blocks, ``count`` of which cover an axis: the power of two if one fits, as all known ones."""
    least = -(-axis // count)
    power = 1 << (least - 1).bit_length()
    return power if -(-axis // power) == count else least


def _bitsandbytes(main: StoredTensor, own: Companions, hidden: int) -> StoredTensor:
    """Return the weight of bitsandbytes' values in 4 bits, which are stored flat, in rows of the hidden size."""
    kind = "nf4" if any(name.endswith("nf4") for name in own) else "fp4"
    elements = prod(main.shape) * 2
    group = elements // max(1, prod(_scales(main, own).shape))
    shape = (elements // hidden, hidden) if elements % hidden == 0 else (1, elements)
    return _stored(main.name, shape, WeightFormat(kind, 4, (min(group, shape[1]),)), main, own)


def _scales(main: StoredTensor, own: Companions) -> StoredTensor:
    found = next((own[end] for end in SCALES if end in own), None)
    if found is None:
        raise InputError(
            f"the packed weights '{main.name}' have no scales ({', '.join(SCALES[:3])}); load all files of the model"
        )
    return found


def _stored(name: str, shape: Sequence[int], bare: WeightFormat, main: StoredTensor, own: Companions) -> StoredTensor:
    """Return a weight with exactly the bytes of its tensors: what groups share in eighths, the rest of the tensor."""
    have = sum(tensor.format.bytes_of(tensor.shape) for tensor in (main, *own.values()))
    values = bare.bytes_of(shape)
    groups = replace(bare, group_bytes=1.0).bytes_of(shape) - values if bare.group else 0
    shared = replace(bare, group_bytes=(have - values) * 8 // groups / 8) if groups else bare  # offsets have 4 bits
    rest = have - shared.bytes_of(shape)
    return StoredTensor(name, tuple(shape), replace(shared, tensor_bytes=rest // max(1, prod(shape[:-2]))))
