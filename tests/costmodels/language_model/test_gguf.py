"""Language models from headers of .gguf files."""

from pathlib import Path
from typing import Any

import pytest

from costmodels.language_model.feed_forward import Dense, Experts
from costmodels.language_model.gguf_header import read_gguf_header
from costmodels.language_model.mixers import GroupedAttention, LatentAttention, Recurrence
from costmodels.language_model.read import read_language_model
from graphs.common.errors import InputError
from tests.weight_files import Tensors, gguf_bytes

HIDDEN, WORDS = 256, 1000


def pairs(family: str = "llama", layers: int = 2, **own: Any) -> dict[str, Any]:
    sizes = {"block_count": layers, "embedding_length": HIDDEN, "context_length": 4096, "attention.head_count": 4}
    named = {f"{family}.{key.replace('__', '.')}": value for key, value in {**sizes, **own}.items()}
    return {"general.architecture": family, "tokenizer.ggml.tokens": ["a"] * 5000, **named}


def dense(layer: int, kind: str = "Q4_K", kv_heads: int = 2) -> Tensors:
    block = f"blk.{layer}"
    return {
        f"{block}.attn_norm.weight": ("F32", (HIDDEN,)),
        f"{block}.attn_q.weight": (kind, (HIDDEN, HIDDEN)),
        f"{block}.attn_k.weight": (kind, (64 * kv_heads, HIDDEN)),
        f"{block}.attn_v.weight": ("Q6_K", (64 * kv_heads, HIDDEN)),
        f"{block}.attn_output.weight": (kind, (HIDDEN, HIDDEN)),
        f"{block}.ffn_gate.weight": (kind, (512, HIDDEN)),
        f"{block}.ffn_up.weight": (kind, (512, HIDDEN)),
        f"{block}.ffn_down.weight": (kind, (HIDDEN, 512)),
    }


def mixture(layer: int) -> Tensors:
    block = f"blk.{layer}"
    attention = {name: own for name, own in dense(layer).items() if "ffn" not in name}
    return {
        **attention,
        f"{block}.ffn_gate_inp.weight": ("F32", (8, HIDDEN)),
        f"{block}.ffn_gate_exps.weight": ("Q4_K", (8, 128, HIDDEN)),
        f"{block}.ffn_up_exps.weight": ("Q4_K", (8, 128, HIDDEN)),
        f"{block}.ffn_down_exps.weight": ("Q8_0", (8, HIDDEN, 128)),
        f"{block}.ffn_gate_shexp.weight": ("Q8_0", (256, HIDDEN)),
        f"{block}.ffn_up_shexp.weight": ("Q8_0", (256, HIDDEN)),
        f"{block}.ffn_down_shexp.weight": ("Q8_0", (HIDDEN, 256)),
    }


ENDS: Tensors = {"token_embd.weight": ("Q6_K", (WORDS, HIDDEN)), "output_norm.weight": ("F32", (HIDDEN,))}


def written(path: Path, own: dict[str, Any], *tensors: Tensors) -> Path:
    every = {name: each for some in tensors for name, each in some.items()}
    path.write_bytes(gguf_bytes(own, every))
    return path


def test_a_dense_model_by_hand(tmp_path: Path) -> None:
    """Each block of 256 elements has 144 bytes in Q4_K and 210 in Q6_K."""
    path = written(tmp_path / "m.gguf", pairs(attention__head_count_kv=2), ENDS, dense(0), dense(1))
    model = read_language_model(path)
    layer = 4 * HIDDEN + 144 * (256 + 128 + 256 + 512 + 512 + 512) + 210 * 128
    assert model.layers[0].bytes == layer
    assert model.bytes == 2 * layer + 210 * WORDS + 4 * HIDDEN
    assert model.layers[0] is model.layers[1]
    assert model.layers[0].mixers == (GroupedAttention(4, 2, 64, 64),)
    assert model.layers[0].feed_forward == Dense(512)
    assert (model.hidden, model.vocabulary, model.trained_tokens, model.tied) == (HIDDEN, WORDS, 4096, True)
    assert "blk.1.ffn_down.weight" in dict(model.named_tensors())


def test_a_mixture_with_a_leading_dense_layer(tmp_path: Path) -> None:
    own = pairs(
        "qwen3moe", attention__head_count_kv=2, expert_count=8, expert_used_count=2, leading_dense_block_count=1
    )
    model = read_language_model(written(tmp_path / "m.gguf", own, ENDS, dense(0), mixture(1)))
    assert [layer.feed_forward for layer in model.layers] == [Dense(512), Experts(8, 2, 128, shared_width=256)]
    assert model.part_bytes("experts") == 2 * 8 * 128 * 144 + 8 * 256 * 4 * 34
    assert model.part_parameters("router") == 8 * HIDDEN


def test_sizes_may_differ_from_layer_to_layer(tmp_path: Path) -> None:
    own = pairs("deci", attention__head_count_kv=[2, 1], attention__head_count=[4, 4])
    model = read_language_model(written(tmp_path / "m.gguf", own, ENDS, dense(0), dense(1, kv_heads=1)))
    assert [layer.mixers[0] for layer in model.layers] == [
        GroupedAttention(4, 2, 64, 64),
        GroupedAttention(4, 1, 64, 64),
    ]


@pytest.mark.parametrize(
    ("family", "own", "windows"),
    [
        ("gpt-oss", {}, [128, 0, 128, 0]),  # every second layer sees all tokens
        ("gemma3", {}, [128] * 4),  # every sixth one
        ("llama", {}, [0] * 4),
        ("mistral", {}, [128] * 4),
        ("olmo3", {"attention__sliding_window_pattern": [True, True, False, True]}, [128, 128, 0, 128]),
    ],
)
def test_windows(tmp_path: Path, family: str, own: dict[str, Any], windows: list[int]) -> None:
    keys = pairs(family, 4, attention__head_count_kv=2, attention__sliding_window=128, **own)
    model = read_language_model(written(tmp_path / "m.gguf", keys, ENDS, *map(dense, range(4))))
    mixers = [layer.mixers[0] for layer in model.layers]
    assert [mixer.window for mixer in mixers if isinstance(mixer, GroupedAttention)] == windows


def test_latent_attention_and_layers_that_draft(tmp_path: Path) -> None:
    keys = pairs(
        "deepseek2", 2, attention__kv_lora_rank=64, attention__q_lora_rank=32, rope__dimension_count=16,
        attention__key_length=80, attention__value_length=64, attention__key_length_mla=48,
        attention__value_length_mla=32, attention__head_count_kv=1, nextn_predict_layers=1,
    )  # fmt: skip
    latent: Tensors = {
        "blk.0.attn_q_a.weight": ("Q4_K", (32, HIDDEN)),
        "blk.0.attn_kv_a_mqa.weight": ("Q4_K", (80, HIDDEN)),
        "blk.0.attn_k_b.weight": ("Q8_0", (4, 64, 32)),
        "blk.0.ffn_up.weight": ("Q4_K", (512, HIDDEN)),
        "blk.0.ffn_down.weight": ("Q4_K", (HIDDEN, 512)),
        "blk.1.nextn.eh_proj.weight": ("Q8_0", (HIDDEN, 2 * HIDDEN)),
    }
    model = read_language_model(written(tmp_path / "m.gguf", keys, ENDS, latent))
    assert model.layers[0].mixers == (LatentAttention(4, 64, 16, 32, 32, query_latent=32),)
    assert len(model.layers) == 1
    assert model.part_parameters("draft") == 2 * HIDDEN**2
    assert model.layers[0].feed_forward == Dense(512, gated=False)


def test_a_state_space_layer(tmp_path: Path) -> None:
    keys = pairs("mamba", 1, ssm__inner_size=512, ssm__state_size=16, ssm__conv_kernel=4, attention__head_count=0)
    own: Tensors = {
        "blk.0.ssm_in.weight": ("Q8_0", (1024, HIDDEN)),
        "blk.0.ssm_conv1d.weight": ("F32", (512, 4)),
        "blk.0.ssm_a": ("F32", (512, 16)),
        "blk.0.ssm_out.weight": ("Q8_0", (HIDDEN, 512)),
    }
    model = read_language_model(written(tmp_path / "m.gguf", keys, ENDS, own))
    assert model.layers[0].mixers == (Recurrence("mamba", 512 * 16, 512 * 3),)


def test_any_shard_stands_for_all(tmp_path: Path) -> None:
    own = {**pairs(attention__head_count_kv=2), "split.count": 2}
    first = written(tmp_path / "m-00001-of-00002.gguf", own, ENDS, dense(0))
    second = written(tmp_path / "m-00002-of-00002.gguf", {"split.no": 1}, dense(1))
    assert read_language_model(first) == read_language_model(tmp_path)
    model = read_language_model(second)
    assert len(model.layers) == 2
    second.unlink()
    with pytest.raises(InputError, match=r"is one of 2 shards, and 'm-00002-of-00002.gguf' is not in its folder"):
        read_language_model(first)


def test_the_other_byte_order(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes(pairs(attention__head_count_kv=2), {**ENDS, **dense(0), **dense(1)}, order=">"))
    assert len(read_language_model(path).layers) == 2


def test_the_package_gguf_reads_the_same(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_block_count(2)
    writer.add_embedding_length(HIDDEN)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.5])
    for name, (kind, shape) in {**ENDS, **dense(0), **dense(1)}.items():
        raw = gguf.GGMLQuantizationType[kind]
        elements = 1
        for axis in shape:
            elements *= axis
        block, size = gguf.GGML_QUANT_SIZES[raw]
        writer.add_tensor_info(name, shape, "float32", elements // block * size, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    header = read_gguf_header(tmp_path / "m.gguf")
    assert {tensor.name for tensor in header.tensors} == {*ENDS, *dense(0), *dense(1)}
    assert header.pairs["tokenizer.ggml.scores"] == (0.5, 1.5)
    assert read_language_model(tmp_path / "m.gguf").layers[0].mixers == (GroupedAttention(4, 2, 64, 64),)


@pytest.mark.parametrize("size", [0, 3, 4, 20, 40, 300, -1])
def test_a_file_that_ends_in_its_header(tmp_path: Path, size: int) -> None:
    path = written(tmp_path / "m.gguf", pairs(attention__head_count_kv=2), ENDS, dense(0), dense(1))
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InputError) as error:
        read_language_model(path)
    assert "load" in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("keys", "tensors", "text"),
    [
        ({}, ENDS, "names no architecture (general.architecture)"),
        (pairs("bert"), ENDS, "holds 'bert', which is no decoder"),
        (pairs(embedding_length=0), ENDS, "has no llama.embedding_length, or it is 0"),
        (pairs(), {}, "has no token_embd.weight and no tensors at all"),
        (pairs(), ENDS, "says that it has 2 layers, and its tensors are of 0; load all files of the model"),
        (pairs(layers=1), {**ENDS, **dense(0, "Q9_9")}, "has ggml's type 99, which is not known here; take a file in"),
        (pairs(layers=1), {**ENDS, **dense(0)}, "keys of 128 values, and its keys say 4 key-value heads of 64"),
        (
            pairs(layers=1, attention__head_count_kv=2),
            {**ENDS, **dense(0), "blk.0.flux.weight": ("Q4_K", (HIDDEN, HIDDEN))},
            "the tensor 'blk.0.flux.weight' with 65,536 elements is of no part of a layer that is known here",
        ),
    ],
)
def test_bad_files_are_named(tmp_path: Path, keys: dict[str, Any], tensors: Tensors, text: str) -> None:
    with pytest.raises(InputError) as error:
        read_language_model(written(tmp_path / "m.gguf", keys, tensors))
    assert text in str(error.value)


def test_other_files_are_no_gguf(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(InputError, match="does not begin with GGUF"):
        read_language_model(path)
    path.write_bytes(gguf_bytes({}, {}, version=7))
    with pytest.raises(InputError, match="has version 7 of GGUF"):
        read_language_model(path)
