"""The example networks: as large as published, the same at every call, and exportable without a changed bit."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers import BertConfig, GPT2Config, LlamaConfig, MixtralConfig, T5Config, ViTConfig, WhisperConfig

from examples.networks import (
    NETWORKS,
    Network,
    bert_base,
    googlenet,
    gpt2,
    llama,
    lstm_seq2seq,
    mixtral,
    mlp,
    mnist,
    resnet50,
    t5,
    two_tower,
    vit_b16,
    whisper,
)
from tests.children import ran

# torch.export says so of every nn.LSTM, whose list of weights it replaces while it traces.
pytestmark = pytest.mark.filterwarnings(r"ignore:The tensor attributes .*_flat_weights")


def conv(channels_in: int, channels_out: int, kernel: int) -> int:
    return channels_in * channels_out * kernel * kernel + channels_out


def linear(features_in: int, features_out: int) -> int:
    return features_in * features_out + features_out


def inception(channels: int, ones: int, threes: tuple[int, int], fives: tuple[int, int], pooled: int) -> int:
    ones_in_all = conv(channels, ones, 1) + conv(channels, threes[0], 1) + conv(channels, fives[0], 1)
    return ones_in_all + conv(*threes, 3) + conv(*fives, 5) + conv(channels, pooled, 1)


def conv_bn(channels_in: int, channels_out: int, kernel: int) -> int:
    return channels_in * channels_out * kernel * kernel + 2 * channels_out


def resnet_layer(channels: int, width: int, n_blocks: int) -> int:
    first = conv_bn(channels, width, 1) + conv_bn(width, width, 3) + conv_bn(width, 4 * width, 1)
    other = conv_bn(4 * width, width, 1) + conv_bn(width, width, 3) + conv_bn(width, 4 * width, 1)
    return first + conv_bn(channels, 4 * width, 1) + (n_blocks - 1) * other


def resnet(first: int, second: int, third: int, fourth: int) -> int:
    layers = resnet_layer(64, 64, first) + resnet_layer(256, 128, second)
    layers += resnet_layer(512, 256, third) + resnet_layer(1024, 512, fourth)
    return conv_bn(3, 64, 7) + layers + linear(2048, 1000)


VGG = conv(3, 64, 3) + conv(64, 64, 3) + conv(64, 128, 3) + conv(128, 128, 3) + conv(128, 256, 3) + conv(256, 512, 3)
VGG += linear(512 * 7 * 7, 4096) + linear(4096, 4096) + linear(4096, 1000)

ENCODER_BLOCK = 4 * linear(768, 768) + linear(768, 3072) + linear(3072, 768) + 2 * 2 * 768  # BERT, GPT-2 and ViT

SMALL_BLOCK = 4 * linear(512, 512) + linear(512, 2048) + linear(2048, 512) + 2 * 2 * 512  # BERT-Small

WHISPER_ATTENTION = 3 * linear(384, 384) + 384 * 384  # the key has no bias
WHISPER_MLP = linear(384, 1536) + linear(1536, 384)

# Per layer: query, key, value and output; the gated MLP or router and experts; two norms.
LLAMA_LAYER = 2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192 + 2 * 2048
MIXTRAL_LAYER = 2 * 1024 * 1024 + 2 * 1024 * 256 + 1024 * 8 + 8 * 3 * 1024 * 3584 + 2 * 1024
MIXTRAL_8X7B_LAYER = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 4096 * 8 + 8 * 3 * 4096 * 14336 + 2 * 4096

# name: (published, the sum over the layers by hand)
PARAMETERS = {
    "mnist": (1_663_370, 832 + 51_264 + 1_606_144 + 5_130),
    "cifar10": (1_068_298, 4_864 + 102_464 + 885_120 + 73_920 + 1_930),
    "mlp": (33_570_816, 8 * linear(2048, 2048)),
    "alexnet": (
        60_965_224,
        conv(3, 96, 11) + conv(48, 256, 5) + conv(256, 384, 3) + conv(192, 384, 3) + conv(192, 256, 3)
        + linear(256 * 6 * 6, 4096) + linear(4096, 4096) + linear(4096, 1000),
    ),
    "nin": (
        7_595_176,
        conv(3, 96, 11) + 2 * conv(96, 96, 1) + conv(96, 256, 5) + 2 * conv(256, 256, 1)
        + conv(256, 384, 3) + 2 * conv(384, 384, 1) + conv(384, 1024, 3) + conv(1024, 1024, 1) + conv(1024, 1000, 1),
    ),
    "googlenet": (
        6_998_552,
        conv(3, 64, 7) + conv(64, 64, 1) + conv(64, 192, 3)
        + inception(192, 64, (96, 128), (16, 32), 32) + inception(256, 128, (128, 192), (32, 96), 64)
        + inception(480, 192, (96, 208), (16, 48), 64) + inception(512, 160, (112, 224), (24, 64), 64)
        + inception(512, 128, (128, 256), (24, 64), 64) + inception(512, 112, (144, 288), (32, 64), 64)
        + inception(528, 256, (160, 320), (32, 128), 128) + inception(832, 256, (160, 320), (32, 128), 128)
        + inception(832, 384, (192, 384), (48, 128), 128) + linear(1024, 1000),
    ),
    "vgg16": (138_357_544, VGG + 2 * conv(256, 256, 3) + 5 * conv(512, 512, 3)),
    "vgg19": (143_667_240, VGG + 3 * conv(256, 256, 3) + 7 * conv(512, 512, 3)),
    "resnet50": (25_557_032, resnet(3, 4, 6, 3)),
    "resnet152": (60_192_808, resnet(3, 8, 36, 3)),
    # Published with its auxiliary classifier, which the network here hasn't.
    "inception_v3": (23_834_568, 27_161_264 - conv_bn(768, 128, 1) - conv_bn(128, 768, 5) - linear(768, 1000)),
    "lstm_seq2seq": (
        82_755_200,
        2 * 16_000 * 1024 + 4 * (4 * 1024 * (1024 + 1024) + 2 * 4 * 1024) + linear(1024, 16_000),
    ),
    "bert_base": (109_482_240, (30_522 + 512 + 2 + 2) * 768 + 12 * ENCODER_BLOCK + linear(768, 768)),
    "two_tower": (
        57_529_346,
        2 * ((30_522 + 512 + 2 + 2) * 512 + 4 * SMALL_BLOCK + linear(512, 512)) + linear(2 * 512, 2),
    ),
    "gpt2": (124_439_808, (50_257 + 1024) * 768 + 12 * ENCODER_BLOCK + 2 * 768),
    "vit_b16": (
        86_567_656,
        conv(3, 768, 16) + (1 + 197) * 768 + 12 * ENCODER_BLOCK + 2 * 768 + linear(768, 1000),
    ),
    "llama": (1_235_814_400, 128_256 * 2048 + 16 * LLAMA_LAYER + 2048),
    "mixtral": (791_233_536, 2 * 32_000 * 1024 + 8 * MIXTRAL_LAYER + 1024),
    "t5": (
        60_506_624,
        32_128 * 512 + 6 * (4 * 512 * 512 + 2 * 512 * 2048 + 2 * 512) + 6 * (8 * 512 * 512 + 2 * 512 * 2048 + 3 * 512)
        + 2 * 32 * 8 + 2 * 512,
    ),
    "whisper": (
        37_760_640,
        (80 * 384 * 3 + 384) + (384 * 384 * 3 + 384) + (1500 + 51_865 + 448) * 384 + 2 * 2 * 384
        + 4 * (WHISPER_ATTENTION + WHISPER_MLP + 2 * 2 * 384) + 4 * (2 * WHISPER_ATTENTION + WHISPER_MLP + 3 * 2 * 384),
    ),
}  # fmt: skip

# The shapes of inputs and outputs of the default sizes at batch 3.
LOGITS = [(3, 1000)]
SHAPES = {
    "mnist": ([(3, 1, 28, 28)], [(3, 10)]),
    "cifar10": ([(3, 3, 24, 24)], [(3, 10)]),
    "mlp": ([(3, 2048)], [(3, 2048)]),
    "alexnet": ([(3, 3, 227, 227)], LOGITS),
    "nin": ([(3, 3, 224, 224)], LOGITS),
    "googlenet": ([(3, 3, 224, 224)], LOGITS),
    "vgg16": ([(3, 3, 224, 224)], LOGITS),
    "vgg19": ([(3, 3, 224, 224)], LOGITS),
    "resnet50": ([(3, 3, 224, 224)], LOGITS),
    "resnet152": ([(3, 3, 224, 224)], LOGITS),
    "inception_v3": ([(3, 3, 299, 299)], LOGITS),
    "lstm_seq2seq": ([(3, 40), (3, 40)], [(3, 40, 16_000)]),
    "bert_base": ([(3, 128)], [(3, 128, 768), (3, 768)]),
    "two_tower": ([(3, 128), (3, 128)], [(3, 2)]),
    "gpt2": ([(3, 128)], [(3, 128, 50_257)]),
    "vit_b16": ([(3, 3, 224, 224)], LOGITS),
    "llama": ([(3, 128)], [(3, 128, 128_256)]),
    "mixtral": ([(3, 128)], [(3, 128, 32_000)]),
    "t5": ([(3, 128), (3, 128), (3, 128)], [(3, 128, 32_128), (3, 128, 512)]),
    "whisper": ([(3, 80, 3000), (3, 3000), (3, 128)], [(3, 128, 51_865), (3, 1500, 384)]),
}

# Configurations of networks that run in a blink; the special words must lie within the vocabulary.
BERT = BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
GPT2 = GPT2Config(vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=16, bos_token_id=1, eos_token_id=2)
VIT = ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=(32, 48))
DECODER = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32}
DECODER |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
T5 = T5Config(vocab_size=64, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4)
WHISPER = WhisperConfig(
    vocab_size=64,
    d_model=16,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=32,
    decoder_ffn_dim=32,
    max_source_positions=16,
    max_target_positions=16,
    decoder_start_token_id=1,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
TINY: dict[str, Callable[[int], Network]] = {
    "mnist": mnist,
    "cifar10": NETWORKS["cifar10"],
    "mlp": lambda batch: mlp(batch, depth=3, width=16),
    "nin": NETWORKS["nin"],
    "googlenet with aux": lambda batch: googlenet(batch, aux=True),
    "lstm_seq2seq": lambda batch: lstm_seq2seq(batch, length=5, hidden=8, layers=3, vocabulary=11),
    "bert_base": lambda batch: bert_base(batch, length=8, config=BERT),
    "two_tower": lambda batch: two_tower(batch, length=8, config=BERT),
    "gpt2": lambda batch: gpt2(batch, length=8, config=GPT2),
    "vit_b16": lambda batch: vit_b16(batch, config=VIT),
    "llama": lambda batch: llama(batch, length=8, config=LlamaConfig.from_dict(DECODER)),
    "mixtral": lambda batch: mixtral(batch, length=8, config=MixtralConfig.from_dict(DECODER)),
    "t5": lambda batch: t5(batch, length=8, config=T5),
    "whisper": lambda batch: whisper(batch, length=8, config=WHISPER),
}
WITH_IN_PLACE_OPS = {"t5", "mixtral"}  # in the transformers library's code


def on_meta(name: str, batch: int = 1) -> Network:
    with torch.device("meta"):
        return NETWORKS[name](batch=batch)


def n_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def tensors(outputs: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]


def shapes(outputs: object) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in tensors(outputs)]


def test_the_tables_here_have_every_network() -> None:
    assert list(PARAMETERS) == list(SHAPES) == list(NETWORKS)


def test_every_network_is_a_factory_of_the_package() -> None:
    package = importlib.import_module("examples.networks")
    assert {name: getattr(package, name) for name in NETWORKS} == NETWORKS
    assert set(package.__all__) == {"NETWORKS", "Factory", "Network", *NETWORKS}


def test_the_transformers_library_is_imported_when_needed() -> None:
    check = "import sys, examples.networks; sys.exit('transformers' in sys.modules)"
    root = Path(__file__).parents[2]
    assert ran([sys.executable, "-c", check], cwd=root).returncode == 0


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters(name: str) -> None:
    published, by_hand = PARAMETERS[name]
    assert by_hand == published
    assert n_parameters(on_meta(name)[0]) == published


def test_parameters_of_googlenet_with_aux() -> None:
    first = conv(512, 128, 1) + linear(128 * 4 * 4, 1024) + linear(1024, 1000)
    second = conv(528, 128, 1) + linear(128 * 4 * 4, 1024) + linear(1024, 1000)
    with torch.device("meta"):
        network, _ = googlenet(aux=True)
    assert n_parameters(network) == 6_998_552 + first + second == 13_378_280


def test_parameters_of_mixtral_8x7b() -> None:
    with torch.device("meta"):
        network, _ = mixtral(config=MixtralConfig())
    assert n_parameters(network) == 2 * 32_000 * 4096 + 32 * MIXTRAL_8X7B_LAYER + 4096 == 46_702_792_704


@pytest.mark.parametrize(
    ("name", "counts"),
    [("mnist", [832, 51_264, 1_606_144, 5_130]), ("cifar10", [4_864, 102_464, 885_120, 73_920, 1_930])],
)
def test_parameters_of_each_layer(name: str, counts: list[int]) -> None:
    network, _ = on_meta(name)
    assert [n for n in map(n_parameters, network.children()) if n > 0] == counts


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("alexnet", "conv2"),
        ("nin", "cccp1.conv"),
        ("googlenet", "inception3a.branch1"),
        ("vgg16", "block5.conv3"),
        ("resnet50", "layer3.5.bn3"),
        ("inception_v3", "mixed7c.branch33.fan.column"),
        ("lstm_seq2seq", "encoder.layers.1"),
        ("mlp", "7.fc"),
    ],
)
def test_modules_have_names_to_show_plans_by(name: str, path: str) -> None:
    assert n_parameters(on_meta(name)[0].get_submodule(path)) > 0


@pytest.mark.parametrize("name", NETWORKS)
def test_inputs_have_the_batch(name: str) -> None:
    network, inputs = on_meta(name, batch=3)
    assert shapes(inputs) == SHAPES[name][0]
    assert not network.training


# Without an attention mask the others look at the values of the word positions; the slow export test sees their shapes.
ON_META = [name for name in NETWORKS if name not in {"gpt2", "llama", "mixtral", "t5", "whisper"}]


@pytest.mark.parametrize("name", ON_META)
def test_outputs_have_the_batch(name: str) -> None:
    network, inputs = on_meta(name, batch=3)
    with torch.no_grad():
        assert shapes(network(*inputs)) == SHAPES[name][1]


@pytest.mark.parametrize("name", TINY)
def test_two_calls_give_the_same_network(name: str) -> None:
    torch.manual_seed(1)
    network, inputs = TINY[name](2)
    torch.manual_seed(2)
    again, inputs_again = TINY[name](2)
    assert_same_weights(network, again)
    assert all(map(torch.equal, inputs, inputs_again))


@pytest.mark.parametrize("name", TINY)
def test_the_weights_do_not_depend_on_the_batch(name: str) -> None:
    network, inputs = TINY[name](1)
    larger, larger_inputs = TINY[name](3)
    assert_same_weights(network, larger)
    assert [(3, *shape[1:]) for shape in shapes(inputs)] == shapes(larger_inputs)


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    weights, others = one.state_dict(), other.state_dict()
    assert list(weights) == list(others)
    assert all(torch.equal(weights[name], others[name]) for name in weights)


@pytest.mark.parametrize("name", TINY)
def test_the_callers_random_state_is_untouched(name: str) -> None:
    before = torch.get_rng_state()
    TINY[name](1)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_meta_device_leaves_the_random_state_and_later_weights_alone() -> None:
    expected, _ = mnist()
    before = torch.get_rng_state()
    on_meta("mnist")
    assert torch.equal(torch.get_rng_state(), before)
    assert_same_weights(mnist()[0], expected)


def test_the_callers_configuration_is_untouched() -> None:
    network, _ = gpt2(length=8, config=GPT2)
    assert GPT2.use_cache
    assert isinstance(network.config, GPT2Config)
    assert not network.config.use_cache


def test_no_batch_norm_is_an_identity() -> None:
    network, _ = resnet50()
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 1 + 3 * (3 + 4 + 6 + 3) + 4
    for norm in norms:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        for values in (norm.bias, norm.running_mean, norm.running_var):
            assert values.std() > 0


@pytest.mark.parametrize("name", TINY)
def test_the_exported_program_gives_the_same_bits(name: str) -> None:
    check_export(name, TINY[name](2), batch=2)


def check_export(name: str, example: Network, batch: int) -> list[Tensor]:
    network, inputs = example
    with torch.no_grad():
        program = torch.export.export(network, inputs, strict=False)
        outputs = tensors(network(*inputs))
        exported = tensors(program.module()(*inputs))
    assert len(outputs) == len(exported) > 0
    assert all(map(torch.equal, outputs, exported))
    for output in outputs:
        assert output.shape[0] == batch
        assert output.isfinite().all()
        assert 1e-3 < output.std() < 100
    in_place = {str(node.target) for node in program.graph.nodes if is_in_place(node)}
    assert bool(in_place) == (name in WITH_IN_PLACE_OPS)
    return outputs


def is_in_place(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
