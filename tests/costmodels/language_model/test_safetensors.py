"""Language models from a config.json and headers of .safetensors files, plain and quantised."""

import json
import struct
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest

from costmodels.language_model.feed_forward import Dense, Experts
from costmodels.language_model.from_config import model_of_config
from costmodels.language_model.mixers import GroupedAttention
from costmodels.language_model.read import read_language_model
from graphs.common.errors import InputError
from tests.weight_files import BYTES, Tensors, write_index, write_safetensors

HIDDEN, WIDTH, WORDS, EXPERTS = 256, 512, 1000, 4
DENSE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": WIDTH,
    "vocab_size": WORDS,
    "dtype": "bfloat16",
}
MIXTURE: dict[str, Any] = {**DENSE, "model_type": "mixtral", "num_local_experts": EXPERTS, "num_experts_per_tok": 2}
PRODUCTS = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (128, HIDDEN),
    "self_attn.v_proj": (128, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (WIDTH, HIDDEN),
    "mlp.up_proj": (WIDTH, HIDDEN),
    "mlp.down_proj": (HIDDEN, WIDTH),
}
ENDS: Tensors = {
    "model.embed_tokens.weight": ("BF16", (WORDS, HIDDEN)),
    "model.norm.weight": ("BF16", (HIDDEN,)),
    "lm_head.weight": ("BF16", (WORDS, HIDDEN)),
    "model.layers.0.input_layernorm.weight": ("BF16", (HIDDEN,)),
    "model.layers.0.post_attention_layernorm.weight": ("BF16", (HIDDEN,)),
}

Stored = Callable[[str, int, int], Tensors]


def plain(name: str, outputs: int, inputs: int) -> Tensors:
    return {f"{name}.weight": ("BF16", (outputs, inputs))}


def awq(name: str, outputs: int, inputs: int) -> Tensors:
    groups = inputs // 128
    return {
        f"{name}.qweight": ("I32", (inputs, outputs // 8)),
        f"{name}.scales": ("F16", (groups, outputs)),
        f"{name}.qzeros": ("I32", (groups, outputs // 8)),
    }


def gptq(name: str, outputs: int, inputs: int) -> Tensors:
    groups = inputs // 128
    return {
        f"{name}.qweight": ("I32", (inputs // 8, outputs)),
        f"{name}.scales": ("F16", (groups, outputs)),
        f"{name}.qzeros": ("I32", (groups, outputs // 8)),
        f"{name}.g_idx": ("I32", (inputs,)),
    }


def fp8_blocks(name: str, outputs: int, inputs: int) -> Tensors:
    return {
        f"{name}.weight": ("F8_E4M3", (outputs, inputs)),
        f"{name}.weight_scale_inv": ("F32", (outputs // 128, inputs // 128)),
    }


def fp8_rows(name: str, outputs: int, inputs: int) -> Tensors:
    return {f"{name}.weight": ("F8_E4M3", (outputs, inputs)), f"{name}.weight_scale": ("F32", (outputs, 1))}


def nvfp4(name: str, outputs: int, inputs: int) -> Tensors:
    return {
        f"{name}.weight": ("U8", (outputs, inputs // 2)),
        f"{name}.weight_scale": ("F8_E4M3", (outputs, inputs // 16)),
        f"{name}.weight_scale_2": ("F32", ()),
    }


def packed(name: str, outputs: int, inputs: int) -> Tensors:
    return {
        f"{name}.weight_packed": ("I32", (outputs, inputs // 8)),
        f"{name}.weight_scale": ("BF16", (outputs, inputs // 32)),
        f"{name}.weight_shape": ("I64", (2,)),
    }


def nf4(name: str, outputs: int, inputs: int) -> Tensors:
    elements = outputs * inputs
    return {
        f"{name}.weight": ("U8", (elements // 2, 1)),
        f"{name}.weight.absmax": ("F32", (elements // 64,)),
        f"{name}.weight.quant_map": ("F32", (16,)),
        f"{name}.weight.quant_state.bitsandbytes__nf4": ("U8", (90,)),
    }


def int8(name: str, outputs: int, inputs: int) -> Tensors:
    return {f"{name}.weight": ("I8", (outputs, inputs)), f"{name}.SCB": ("F32", (outputs,))}


def folder_of(path: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_safetensors(path / "model.safetensors", tensors)
    return path


def layer_of(stored: Stored) -> Tensors:
    return {
        name: own
        for module, (outputs, inputs) in PRODUCTS.items()
        for name, own in stored(f"model.layers.0.{module}", outputs, inputs).items()
    }


def size_of(tensors: Tensors) -> int:
    return sum(BYTES[kind] * prod(shape) for kind, shape in tensors.values())


INTEGERS = {"bits": 4, "group_size": 128}
GROUPS = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 32}}}
METHODS: dict[str, tuple[Stored, dict[str, Any] | None]] = {
    "plain": (plain, None),
    "awq": (awq, {"quant_method": "awq", "zero_point": True, **INTEGERS}),
    "gptq": (gptq, {"quant_method": "gptq", "sym": True, **INTEGERS}),
    "fp8 blocks": (fp8_blocks, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "fp8 rows": (fp8_rows, {"quant_method": "fbgemm_fp8"}),
    "nvfp4": (nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "compressed": (packed, {"quant_method": "compressed-tensors", "config_groups": GROUPS, "ignore": ["lm_head"]}),
    "nf4": (nf4, {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}),
    "int8": (int8, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
}


@pytest.mark.parametrize("method", METHODS)
def test_headers_and_the_config_agree(tmp_path: Path, method: str) -> None:
    """Bytes are those of the headers to the last one; the config alone knows them to the small change of companions."""
    stored, about = METHODS[method]
    config = DENSE if about is None else {**DENSE, "quantization_config": about}
    tensors = {**ENDS, **layer_of(stored)}
    model, alone = read_language_model(folder_of(tmp_path, config, tensors)), model_of_config(config)
    assert model.bytes == size_of(tensors)
    assert model.parameters == alone.parameters
    assert model.layers[0].mixers == alone.layers[0].mixers == (GroupedAttention(4, 2, 64, 64),)
    assert model.layers[0].feed_forward == alone.layers[0].feed_forward == Dense(WIDTH)
    assert alone.bytes == pytest.approx(model.bytes, rel=0.01)
    kinds = {tensor.format.bits for tensor in model.layers[0].tensors if tensor.part == "dense"}
    assert kinds == {tensor.format.bits for tensor in alone.layers[0].tensors if tensor.part == "dense"}
    assert {tensor.format.name for tensor in model.tensors} == {"bfloat16"}


def test_experts_are_one_tensor(tmp_path: Path) -> None:
    """A checkpoint has a tensor for each expert; the record has one whose first axis counts them."""
    experts = {
        f"model.layers.0.block_sparse_moe.experts.{number}.{name}.weight": ("BF16", shape)
        for number in range(EXPERTS)
        for name, shape in (("w1", (WIDTH, HIDDEN)), ("w2", (HIDDEN, WIDTH)), ("w3", (WIDTH, HIDDEN)))
    }
    attention = {name: own for name, own in layer_of(plain).items() if "mlp" not in name}
    gate: Tensors = {"model.layers.0.block_sparse_moe.gate.weight": ("BF16", (EXPERTS, HIDDEN))}
    model = read_language_model(folder_of(tmp_path, MIXTURE, {**ENDS, **attention, **gate, **experts}))
    assert model.layers[0].feed_forward == Experts(EXPERTS, 2, WIDTH)
    assert model.parameters == model_of_config(MIXTURE).parameters
    shapes = {tensor.name: tensor.shape for tensor in model.layers[0].tensors if tensor.part == "experts"}
    assert shapes["block_sparse_moe.experts.w1.weight"] == (EXPERTS, WIDTH, HIDDEN)


def test_mxfp4_experts(tmp_path: Path) -> None:
    """32 elements are 16 bytes and one of scale; attention and routers stay as they are."""
    config = {
        **DENSE, "model_type": "gpt_oss", "head_dim": 64, "num_local_experts": EXPERTS, "num_experts_per_tok": 2,
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
    }  # fmt: skip
    experts: Tensors = {
        "model.layers.0.mlp.experts.gate_up_proj_blocks": ("U8", (EXPERTS, 2 * WIDTH, HIDDEN // 32, 16)),
        "model.layers.0.mlp.experts.gate_up_proj_scales": ("U8", (EXPERTS, 2 * WIDTH, HIDDEN // 32)),
        "model.layers.0.mlp.experts.gate_up_proj_bias": ("BF16", (EXPERTS, 2 * WIDTH)),
        "model.layers.0.mlp.experts.down_proj_blocks": ("U8", (EXPERTS, HIDDEN, WIDTH // 32, 16)),
        "model.layers.0.mlp.experts.down_proj_scales": ("U8", (EXPERTS, HIDDEN, WIDTH // 32)),
        "model.layers.0.mlp.experts.down_proj_bias": ("BF16", (EXPERTS, HIDDEN)),
        "model.layers.0.mlp.router.weight": ("BF16", (EXPERTS, HIDDEN)),
        "model.layers.0.mlp.router.bias": ("BF16", (EXPERTS,)),
    }
    attention = {name: own for name, own in layer_of(plain).items() if "mlp" not in name}
    tensors = {**ENDS, **attention, **experts}
    model, alone = read_language_model(folder_of(tmp_path, config, tensors)), model_of_config(config)
    weights = EXPERTS * 3 * WIDTH * HIDDEN // 32 * 17
    assert model.part_bytes("experts") == alone.part_bytes("experts") == weights + EXPERTS * (2 * WIDTH + HIDDEN) * 2
    assert model.bytes == size_of(tensors)
    assert model.layers[0].feed_forward == alone.layers[0].feed_forward == Experts(EXPERTS, 2, WIDTH)


def test_modules_that_are_not_converted_keep_their_format() -> None:
    about = {"quant_method": "awq", "modules_to_not_convert": ["self_attn"], **INTEGERS}
    model = model_of_config({**DENSE, "quantization_config": about})
    assert {tensor.format.bits for tensor in model.layers[0].tensors if tensor.part == "mixer"} == {16}
    assert {tensor.format.bits for tensor in model.layers[0].tensors if tensor.part == "dense"} == {4}


def test_an_index_and_its_files(tmp_path: Path) -> None:
    shards = {"model-00001-of-00002.safetensors": ENDS, "model-00002-of-00002.safetensors": layer_of(plain)}
    index = write_index(tmp_path, shards)
    (tmp_path / "config.json").write_text(json.dumps(DENSE), encoding="utf-8")
    model = read_language_model(index)
    assert model.parameters == read_language_model(tmp_path).parameters == model_of_config(DENSE).parameters
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match=r"names the file 'model-00002-of-00002.safetensors', which is not in its"):
        read_language_model(tmp_path)
    index.unlink()
    with pytest.raises(InputError, match=r"is one of 2 files, and 'model-00002-of-00002.safetensors' is not in its"):
        read_language_model(tmp_path)


def test_layers_that_draft_tokens_are_apart(tmp_path: Path) -> None:
    more = {name.replace("layers.0", "layers.1"): own for name, own in layer_of(plain).items()}
    model = read_language_model(folder_of(tmp_path, DENSE, {**ENDS, **layer_of(plain), **more}))
    assert len(model.layers) == 1
    assert model.part_parameters("draft") == sum(prod(shape) for _, shape in layer_of(plain).values())
    assert model.active_parameters == model_of_config(DENSE).parameters


def test_a_config_of_an_unknown_type_is_read_with_its_headers(tmp_path: Path) -> None:
    config = {**DENSE, "model_type": "nobody_knows", "max_position_embeddings": 2048}
    model = read_language_model(folder_of(tmp_path, config, {**ENDS, **layer_of(plain)}))
    assert model.layers[0].mixers == (GroupedAttention(4, 2, 64, 64),)
    assert model.trained_tokens == 2048


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "does not begin with the header of a .safetensors file"),
        (struct.pack("<Q", 500) + b"{}", "ends in its header, after 10 bytes of 508"),
        (struct.pack("<Q", 2**60), "does not begin with the header"),
        (struct.pack("<Q", 3) + b"{,}", "is damaged"),
        (struct.pack("<Q", 8) + b'{"a": 1}', "the tensor 'a' of"),
        (
            struct.pack("<Q", 55) + b'{"a":{"dtype":"Q3","shape":[2],"data_offsets":[0, 8]}}'.ljust(55),
            "has the type 'Q3', which is not known here; take a file in one of F64",
        ),
        (
            struct.pack("<Q", 55) + b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}'.ljust(55),
            "has 8 bytes, and 3 elements of F32 have 12; the header is damaged",
        ),
    ],
)
def test_damaged_headers_are_named(tmp_path: Path, content: bytes, text: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DENSE), encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError) as error:
        read_language_model(tmp_path)
    assert text in str(error.value)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no language model; give a config.json"):
        read_language_model(tmp_path)
    with pytest.raises(InputError, match=r"does not exist; give a config.json"):
        read_language_model(tmp_path / "m.gguf")
    path = write_safetensors(tmp_path / "model.safetensors", ENDS)
    with pytest.raises(InputError, match=r"has no config.json in its folder"):
        read_language_model(path)
    config = {**DENSE, "quantization_config": {"quant_method": "awq"}}
    with pytest.raises(InputError, match="nothing says how many bits the weights of"):
        read_language_model(folder_of(tmp_path, config, {**ENDS, **layer_of(awq)}))
    own = {"model.layers.0.self_attn.q_proj.qweight": ("I32", (HIDDEN, HIDDEN // 8))}
    config = {**DENSE, "quantization_config": {"quant_method": "awq", **INTEGERS}}
    with pytest.raises(InputError, match=r"have no scales \(.scales"):
        read_language_model(folder_of(tmp_path, config, {**ENDS, **own}))
    with pytest.raises(InputError, match=r"no bits; add it|has no w_bit"):
        model_of_config({**DENSE, "quantization_config": {"quant_method": "awq"}})
    with pytest.raises(InputError, match=r"is no language model; give a config.json"):
        read_language_model(write_safetensors(tmp_path / "model.bin", ENDS))
