"""A config.json that transformers takes and that makes no sense, or another network than its author meant."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from graphs.common.errors import InputError
from graphs.importers.config_checks import check_config
from graphs.importers.from_config import build, read_config

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 8,
}
GPT2 = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 50, "n_positions": 8}
VIT = {"model_type": "vit", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8}
LLAVA = {"model_type": "llava", "text_config": LLAMA, "vision_config": {"model_type": "clip_vision_model"}}
LIBRARY = f"none that transformers {transformers.__version__} has"


def written(folder: Path, document: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.attack("first-try")
@pytest.mark.parametrize(
    ("kind", "changed", "text"),
    [
        (LLAMA, {"num_hidden_layers": -1}, "num_hidden_layers is -1; it must be a whole number from 1"),
        (LLAMA, {"num_hidden_layers": 0}, "num_hidden_layers is 0; it must be a whole number from 1"),
        (LLAMA, {"num_hidden_layers": 2.5}, "num_hidden_layers is 2.5; it must be a whole number from 1"),
        (LLAMA, {"num_hidden_layers": "2"}, "num_hidden_layers is '2'; it must be a whole number from 1"),
        (LLAMA, {"num_hidden_layers": True}, "num_hidden_layers is True; it must be a whole number from 1"),
        (LLAMA, {"vocab_size": 0}, "vocab_size is 0; it must be a whole number from 1"),
        (LLAMA, {"max_position_embeddings": -1}, "max_position_embeddings is -1; it must be a whole number from 1"),
        (LLAMA, {"num_key_value_heads": 0}, "num_key_value_heads is 0; it must be a whole number from 1"),
        (GPT2, {"n_layer": -2}, "n_layer is -2; it must be a whole number from 1"),
        (VIT, {"num_channels": -3}, "num_channels is -3; it must be a whole number from 0"),
        (
            LLAVA,
            {"text_config": LLAMA | {"num_hidden_layers": -1}},
            "text_config.num_hidden_layers is -1; it must be a whole number from 1",
        ),
        (
            LLAMA,
            {"num_attention_heads": 3},
            "num_attention_heads is 3, which does not divide hidden_size, 16; change one",
        ),
        (
            LLAMA,
            {"num_key_value_heads": 3, "num_attention_heads": 4},
            "num_key_value_heads is 3, which does not divide num_attention_heads, 4; change one",
        ),
        (
            {name: value for name, value in LLAMA.items() if name != "num_hidden_layers"},
            {"num_hiden_layers": 3},
            "num_hiden_layers is no field of a 'llama' config; did you mean 'num_hidden_layers'?",
        ),
        (LLAMA, {"dtype": "bfloat61"}, "dtype is 'bfloat61'; it must be one of float32, bfloat16, float16, float64"),
        (
            LLAMA,
            {"torch_dtype": "int8"},
            "torch_dtype is 'int8'; it must be one of float32, bfloat16, float16, float64",
        ),
        (
            LLAMA,
            {"architectures": ["LlamaForCausalLm"]},
            f"the architecture 'LlamaForCausalLm' is {LIBRARY}; did you mean 'LlamaForCausalLM'?",
        ),
        (
            LLAMA,
            {"architectures": ["Abacus"]},
            f"the architecture 'Abacus' is {LIBRARY}; leave architectures out for the network without a head",
        ),
        (
            LLAMA,
            {"architectures": ["LlamaConfig"]},
            f"the architecture 'LlamaConfig' is {LIBRARY}; leave architectures out for the network without a head",
        ),
        (
            LLAMA,
            {"architectures": ["BertForMaskedLM"]},
            "the architecture 'BertForMaskedLM' is of the model type 'bert', and model_type is 'llama'; write those of "
            "one network",
        ),
        (
            LLAMA,
            {"architectures": ["Mine"], "auto_map": {"AutoModel": "mine.Mine"}},
            "the architecture 'Mine' has code of its own (auto_map), which is not run from a config; give it as "
            "package.module:factory",
        ),
        (
            LLAMA,
            {"architectures": "LlamaForCausalLM"},
            "architectures is 'LlamaForCausalLM'; write a list with the name of a class",
        ),
        (LLAMA, {"model_type": "lama"}, f"the model type 'lama' is {LIBRARY}; did you mean 'llama'?"),
    ],
)
def test_what_makes_no_sense(kind: dict[str, Any], changed: dict[str, Any], text: str, tmp_path: Path) -> None:
    path = written(tmp_path, kind | changed)
    with pytest.raises(InputError) as error:
        read_config(path)
    assert str(error.value) == f"{path}: {text}"


@pytest.mark.attack("first-try")
@pytest.mark.parametrize(
    ("about", "how"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq in 4 bits"),
        ({"quant_method": "gptq", "bits": 3}, "gptq in 3 bits"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "fp8"}, "fp8"),
    ],
)
@pytest.mark.parametrize("where", ["", "text_config."])
def test_quantised_weights_are_not_planned_as_others(
    about: dict[str, Any], how: str, where: str, tmp_path: Path
) -> None:
    quantised = LLAMA | {"quantization_config": about}
    path = written(tmp_path, LLAVA | {"text_config": quantised} if where else quantised)
    with pytest.raises(InputError) as error:
        read_config(path)
    assert str(error.value) == (
        f"{path}: the weights are quantised by {how} ({where}quantization_config), and what such weights take in "
        f"memory and time is not known here; delete '{where}quantization_config' to plan for the network before "
        "quantisation, or give the quantised one as .pt2 or package.module:factory"
    )


def test_a_name_that_is_looked_up_in_vain_is_said_with_its_field(tmp_path: Path) -> None:
    path = written(tmp_path, LLAMA | {"hidden_act": "reluu"})
    with pytest.raises(InputError) as error:
        build(path)
    assert str(error.value).endswith("(llama): ['hidden_act'] is 'reluu', which it does not know")


@pytest.mark.parametrize("model_type", ["bert", "gpt2", "t5", "mt5", "swin", "qwen3", "reformer", "glm4_moe", "llava"])
def test_what_transformers_itself_writes_makes_sense(model_type: str) -> None:
    document = transformers.CONFIG_MAPPING[model_type]().to_dict()
    check_config(document | {"model_type": model_type}, transformers.CONFIG_MAPPING)
