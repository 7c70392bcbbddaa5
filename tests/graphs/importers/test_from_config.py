"""Networks from a config.json: all of their operators and parameters, and not a byte of weights."""

import builtins
import json
import logging
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers

from graphs.common.errors import FallbackWarning, InputError
from graphs.importers.config_inputs import example_inputs
from graphs.importers.from_config import build, read_config
from graphs.importers.from_torch import program_from_module
from graphs.ir import Role
from graphs.program.program import Program
from tests.graphs.importers.modules import assert_same, run_eagerly

hf: Any = transformers  # whose configs take what they are given, whatever their signatures say

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT = SIZES | {"vocab_size": 50}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PICTURE = SIZES | {"image_size": 16, "patch_size": 8}
HALVES = {f"{half}_{what}": n for half in ("encoder", "decoder") for what, n in
          {"layers": 2, "attention_heads": 2, "ffn_dim": 32}.items()}  # fmt: skip

ATTENTION = 4 * (16 * 16 + 16)  # query, key, value and output, each with a bias
BLOCK = ATTENTION + (16 * 32 + 32) + (32 * 16 + 16) + 2 * 2 * 16  # and the two layers of an MLP, and two norms
LLAMA = 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 32 + 2 * 16  # q and o; k and v of one head of two; gated MLP; two norms
MIXTURE = LLAMA - 3 * 16 * 32 + 4 * 16 + 4 * 3 * 16 * 32  # instead of the MLP a router and four experts


class Family(NamedTuple):
    """A tiny network: its config, its class, its inputs for a batch of 2, and its parameters by hand or None."""

    config: Any
    name: str
    inputs: dict[str, tuple[int, ...]]
    n_parameters: int | None = None


FAMILIES: dict[str, Family] = {
    "bert": Family(
        hf.BertConfig(**TEXT, max_position_embeddings=20), "BertModel", {"input_ids": (2, 20)},
        (50 + 20 + 2) * 16 + 2 * 16 + 2 * BLOCK + (16 * 16 + 16),
    ),
    "gpt2": Family(
        hf.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_inner=32, vocab_size=50, n_positions=20, **SPECIAL),
        "GPT2LMHeadModel", {"input_ids": (2, 20)}, (50 + 20) * 16 + 2 * BLOCK + 2 * 16,
    ),
    "vit": Family(
        hf.ViTConfig(**PICTURE, num_labels=3), "ViTForImageClassification", {"pixel_values": (2, 3, 16, 16)},
        (3 * 8 * 8 * 16 + 16) + (1 + 1 + 4) * 16 + 2 * BLOCK + 2 * 16 + (16 * 3 + 3),
    ),
    "llama": Family(
        hf.LlamaConfig(**TEXT, num_key_value_heads=1), "LlamaForCausalLM", {"input_ids": (2, 512)},
        2 * 50 * 16 + 2 * LLAMA + 16,
    ),
    "mixtral": Family(
        hf.MixtralConfig(**TEXT, num_key_value_heads=1, num_local_experts=4), "MixtralForCausalLM",
        {"input_ids": (2, 512)}, 2 * 50 * 16 + 2 * MIXTURE + 16,
    ),
    "t5": Family(
        hf.T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, vocab_size=50),
        "T5ForConditionalGeneration", {"input_ids": (2, 512), "decoder_input_ids": (2, 512)},
        # attention without biases in 2 encoder and 4 decoder places, 4 MLPs, norms of one vector, 32 buckets of places
        50 * 16 + 6 * 4 * 16 * 16 + 4 * 2 * 16 * 32 + (2 * 2 + 2 * 3 + 2) * 16 + 2 * 32 * 2,
    ),
    "whisper": Family(
        hf.WhisperConfig(d_model=16, **HALVES, **SPECIAL, vocab_size=50, max_source_positions=20,
                         max_target_positions=10, num_mel_bins=8, decoder_start_token_id=1),
        "WhisperForConditionalGeneration", {"input_features": (2, 8, 40), "decoder_input_ids": (2, 10)},
    ),
    "bart": Family(
        hf.BartConfig(d_model=16, **HALVES, **SPECIAL, vocab_size=50, max_position_embeddings=20),
        "BartModel", {"input_ids": (2, 20), "decoder_input_ids": (2, 20)},
    ),
    "roberta": Family(  # positions begin after that of padding
        hf.RobertaConfig(**TEXT, **SPECIAL, max_position_embeddings=20), "RobertaModel", {"input_ids": (2, 19)},
    ),
    "resnet": Family(
        hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]), "ResNetModel",
        {"pixel_values": (2, 3, 224, 224)},
    ),
    "clip": Family(
        hf.CLIPConfig(text_config=TEXT | SPECIAL | {"max_position_embeddings": 20}, vision_config=PICTURE,
                      projection_dim=8),
        "CLIPModel", {"input_ids": (2, 20), "pixel_values": (2, 3, 16, 16)},
        (50 + 20) * 16 + 3 * 8 * 8 * 16 + (1 + 1 + 4) * 16 + 4 * BLOCK + 3 * 2 * 16 + 2 * 16 * 8 + 1,
    ),
    "swin": Family(
        hf.SwinConfig(embed_dim=8, depths=[1, 1], num_heads=[2, 2], image_size=32, window_size=2), "SwinModel",
        {"pixel_values": (2, 3, 32, 32)},
    ),
    "wav2vec2": Family(
        hf.Wav2Vec2Config(**SIZES, vocab_size=50, conv_dim=[8] * 7, num_conv_pos_embeddings=4,
                          num_conv_pos_embedding_groups=2, mask_time_prob=0.0, mask_feature_prob=0.0),
        "Wav2Vec2ForCTC", {"input_values": (2, 16_000)},
    ),
    "spectrogram": Family(
        hf.ASTConfig(**SIZES, max_length=32, num_mel_bins=16), "ASTModel", {"input_values": (2, 32, 16)}
    ),
    "film": Family(
        hf.VivitConfig(**SIZES, image_size=16, num_frames=4, tubelet_size=[2, 8, 8]), "VivitModel",
        {"pixel_values": (2, 4, 3, 16, 16)},
    ),
    "patchtst": Family(
        hf.PatchTSTConfig(d_model=16, num_attention_heads=2, num_hidden_layers=1, ffn_dim=32, context_length=8,
                          patch_length=2, patch_stride=2, num_input_channels=3),
        "PatchTSTModel", {"past_values": (2, 8, 3)},
    ),
    "detr": Family(  # an encoder and a decoder without tokens
        hf.DetrConfig(d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                      decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, num_queries=3,
                      backbone_config=hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
                                                      out_features=["stage2"])),
        "DetrModel", {"pixel_values": (2, 3, 224, 224)},
    ),
    "gemma2": Family(
        hf.Gemma2Config(**TEXT, **SPECIAL, num_key_value_heads=1, head_dim=8), "Gemma2Model", {"input_ids": (2, 512)}
    ),
}  # fmt: skip


QUICK = ("bert", "vit", "llama", "whisper")


def write(config: Any, folder: Path, architecture: str | None = None, **changes: Any) -> Path:
    config.save_pretrained(folder)
    path = folder / "config.json"
    named = {} if architecture is None else {"architectures": [architecture]}
    path.write_text(json.dumps(json.loads(path.read_text()) | named | changes))
    return path


def n_parameters(program: Program) -> int:
    return sum(t.n_elements for t in program.graph.tensors if t.role is Role.PARAMETER)


def assert_imported(program: Program, family: Family) -> None:
    """The network has its names, shapes and parameters, and no values."""
    assert type(program.module).__name__ == program.graph.name == family.name
    assert {i: program.graph.tensor[i].shape for i in program.graph.inputs} == family.inputs
    assert n_parameters(program) == sum(p.numel() for p in program.module.parameters())
    assert family.n_parameters in (None, n_parameters(program))
    held = (*program.state.values(), *program.example_inputs, *program.module.parameters(), *program.module.buffers())
    assert {t.device.type for t in held} == {"meta"}
    assert not program.module.training


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES],
)
def test_every_family_is_the_same_as_with_weights(name: str, tmp_path: Path) -> None:
    """All that reads parameters is the same; PyTorch copies attention into another layout on some devices only."""

    def readers(program: Program) -> list[Any]:
        tensor = program.graph.tensor
        found = []
        for op in program.graph.ops:
            if names := [i for i in op.inputs if tensor[i].role is Role.PARAMETER]:
                found.append((op.kind, op.module, op.attrs, names, [tensor[o].shape for o in op.outputs]))
        return found

    family = FAMILIES[name]
    on_meta = read_config(write(family.config, tmp_path, family.name), 2)
    assert_imported(on_meta, family)
    config = deepcopy(family.config)
    config.use_cache = False
    module = getattr(hf, family.name)(config).eval()
    inputs = {i: torch.randint(50, shape) if "ids" in i else torch.randn(shape) for i, shape in family.inputs.items()}
    program = program_from_module(module, (), inputs)
    assert readers(program) == readers(on_meta)
    assert len(readers(program)) > 5
    assert_same(program.run(**inputs), run_eagerly(module, (), inputs))


class TestInputs:
    def test_one_sample_if_left_out(self, tmp_path: Path) -> None:
        program = read_config(write(FAMILIES["bert"].config, tmp_path))
        assert [t.shape for t in program.graph.tensors if t.role is Role.INPUT] == [(1, 20)]

    def test_oblong_pictures(self, tmp_path: Path) -> None:
        config = hf.ViTConfig(**(PICTURE | {"image_size": (8, 24)}))
        program = read_config(write(config, tmp_path), 3)
        assert program.graph.tensor["pixel_values"].shape == (3, 3, 8, 24)

    def test_on_the_current_device(self, tmp_path: Path) -> None:
        module = build(write(FAMILIES["vit"].config, tmp_path))
        (pixels,) = example_inputs(module, 2).values()
        assert pixels.device.type == "cpu"
        assert not pixels.any()


class TestBuild:
    def test_without_architectures_the_bare_network(self, tmp_path: Path) -> None:
        config = hf.BertConfig(**TEXT)
        assert type(build(write(config, tmp_path))).__name__ == "BertModel"

    @pytest.mark.parametrize("architecture", [None, "LlamaForCausalLM"])
    def test_the_dtype_of_the_config(self, architecture: str | None, tmp_path: Path) -> None:
        """It halves what a device must hold."""
        config = hf.LlamaConfig(**TEXT, num_key_value_heads=1, dtype="bfloat16")
        program = read_config(write(config, tmp_path, architecture))
        parameters = [t for t in program.graph.tensors if t.role is Role.PARAMETER]
        assert {t.dtype for t in parameters} == {"bfloat16"}
        assert sum(t.n_bytes for t in parameters) == 2 * n_parameters(program)

    @pytest.mark.parametrize("name", ["vit", "whisper"])
    def test_inputs_have_the_dtype_too(self, name: str, tmp_path: Path) -> None:
        path = write(FAMILIES[name].config, tmp_path, FAMILIES[name].name, dtype="float16")
        program = read_config(path)
        assert program.graph.tensor[program.graph.inputs[0]].dtype == "float16"

    def test_global_state_is_untouched(self, tmp_path: Path) -> None:
        path = write(FAMILIES["bert"].config, tmp_path)
        build(path)  # imports what it needs
        before = torch.get_rng_state(), random.getstate(), torch.get_default_dtype(), torch.get_default_device()
        read_config(path)
        after = torch.get_rng_state(), random.getstate(), torch.get_default_dtype(), torch.get_default_device()
        assert torch.equal(after[0], before[0])
        assert after[1:] == before[1:]

    def test_silent(self, tmp_path: Path) -> None:
        """The library has a warning for these two, which are no words of the vocabulary."""
        path = write(FAMILIES["bert"].config, tmp_path, bos_token_id=60, eos_token_id=70)
        with logged_by_transformers() as records:
            build(path)
        assert records == []

    def test_nobody_is_asked_to_trust_a_config(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[str] = []
        monkeypatch.setattr(builtins, "input", asked.append)
        config = hf.EncoderDecoderConfig.from_encoder_decoder_configs(hf.BertConfig(**TEXT), hf.BertConfig(**TEXT))
        path = write(config, tmp_path, architectures=None, auto_map={"AutoModel": f"{tmp_path}--mine.Model"})
        with pytest.raises(InputError) as error:
            build(path)
        assert str(error.value).startswith(f"transformers cannot build '{path}' (encoder-decoder): ")
        assert asked == []


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextmanager
def logged_by_transformers() -> Iterator[list[str]]:
    """Its loggers hand nothing up, so that pytest's capture misses them."""
    handler = Records()
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        yield handler.texts
    finally:
        logger.removeHandler(handler)


class TestRefused:
    def check(self, path: Path, text: str, capfd: pytest.CaptureFixture[str]) -> None:
        capfd.readouterr()
        with logged_by_transformers() as records, pytest.raises(InputError) as error:
            read_config(path)
        assert str(error.value) == text.format(path)
        assert capfd.readouterr() == ("", "")
        assert records == []

    @pytest.mark.parametrize(
        ("content", "text"),
        [
            ("{}", "'{}' has no 'model_type'; it is neither a transformers config nor a graph.json"),
            ('{"model_type": 3}', "'{}' has no 'model_type'; it is neither a transformers config nor a graph.json"),
            ("[]", "the config '{}' holds a list, not an object; write it again"),
            ("{", "the config '{}' is not JSON (Expecting property name enclosed in double quotes: "
             "line 1 column 2 (char 1)); write it again"),
        ],
    )  # fmt: skip
    def test_no_config(self, content: str, text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "config.json"
        path.write_text(content)
        self.check(path, text, capfd)

    def test_unknown_type(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "config.json"
        path.write_text('{"model_type": "abacus"}')
        known = f"none that transformers {hf.__version__} has"
        self.check(path, f"{{}}: the model type 'abacus' is {known}; give the network as package.module:factory", capfd)

    def test_sizes_that_do_not_fit(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        path = write(FAMILIES["bert"].config, tmp_path, num_attention_heads=3)
        self.check(
            path,
            "{}: num_attention_heads is 3, which does not divide hidden_size, 16; change one",
            capfd,
        )

    def test_other_inputs(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        path = write(hf.SpeechT5HifiGanConfig(), tmp_path, architecture="SpeechT5HifiGan")
        self.check(path, "'SpeechT5HifiGan' takes spectrogram, kwargs; give it as package.module:factory", capfd)

    def test_inputs_of_unknown_size(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        path = write(hf.Wav2Vec2BertConfig(**SIZES, add_adapter=False, feature_projection_input_dim=0), tmp_path)
        self.check(
            path,
            "the inputs of 'Wav2Vec2BertModel' do not follow from its config ('Wav2Vec2BertConfig' object has no "
            "attribute 'num_mel_bins'); give it as package.module:factory",
            capfd,
        )


class TestInputsOfSeveralKinds:
    def test_tokens_stand_for_a_picture(self, tmp_path: Path) -> None:
        pictured = {**PICTURE, "model_type": "clip_vision_model"}
        text = {**TEXT, "model_type": "llama"}
        config = hf.LlavaConfig(vision_config=pictured, text_config=text, image_token_index=49)
        inputs = example_inputs(build(write(config, tmp_path), torch.device("cpu")), 2)
        assert inputs["pixel_values"].shape == (2, 3, 16, 16)
        assert [row.tolist().count(49) for row in inputs["input_ids"]] == [4, 4]  # patches of 8 of 16

    def test_texts_alone_where_pictures_cannot_be_traced(self, tmp_path: Path) -> None:
        pictured = {**PICTURE, "model_type": "clip_vision_model"}
        text = {**TEXT, "model_type": "llama"}
        config = hf.LlavaConfig(vision_config=pictured, text_config=text, image_token_index=49, vision_feature_layer=9)
        with pytest.warns(FallbackWarning, match=r"^model 'LlavaModel' cannot .*; so its texts alone are planned for$"):
            program = read_config(write(config, tmp_path))
        assert program.graph.inputs == ("input_ids",)

    def test_patches_alone_come_with_their_grid(self, tmp_path: Path) -> None:
        config = hf.Qwen2VLConfig().vision_config
        config.depth, config.embed_dim, config.hidden_size, config.num_heads, config.patch_size = 1, 16, 16, 2, 2
        inputs = example_inputs(build(write(config, tmp_path), torch.device("cpu")), 1)
        assert inputs["grid_thw"].tolist() == [[1, 8, 8]]
        assert inputs["hidden_states"].shape == (64, 3 * 2 * 2**2)

    def test_a_picture_in_patches_comes_with_its_grid(self, tmp_path: Path) -> None:
        text = {
            **TEXT,
            "num_key_value_heads": 2,
            "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]},
        }
        sides = {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "patch_size": 2}
        config = hf.Qwen2VLConfig(text_config=text, vision_config=sides, image_token_id=40, video_token_id=41)
        inputs = example_inputs(build(write(config, tmp_path), torch.device("cpu")), 1)
        assert inputs["image_grid_thw"].tolist() == [[1, 8, 8]]
        assert inputs["pixel_values"].shape == (64, 3 * 2 * 2**2)
        assert inputs["mm_token_type_ids"].sum() == (inputs["input_ids"] == 40).sum() == 16  # four patches for a token

    def test_a_spectrogram_has_the_axes_that_the_network_takes(self, tmp_path: Path) -> None:
        config = hf.Wav2Vec2BertConfig(**SIZES, add_adapter=False, feature_projection_input_dim=12)
        with torch.device("meta"):
            assert example_inputs(build(write(config, tmp_path)), 2)["input_features"].shape == (2, 10_000, 12)

    def test_a_part_of_another_model_is_a_network(self, tmp_path: Path) -> None:
        assert type(build(write(hf.BlipVisionConfig(**PICTURE), tmp_path))).__name__ == "BlipVisionModel"


@pytest.mark.slow
def test_a_network_larger_than_memory(tmp_path: Path) -> None:
    config = hf.LlamaConfig(
        hidden_size=16_384,
        intermediate_size=57_344,
        num_hidden_layers=4,
        num_attention_heads=128,
        num_key_value_heads=16,
        vocab_size=128_256,
        dtype="bfloat16",
    )
    path = write(config, tmp_path, "LlamaForCausalLM")
    peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    program = read_config(path)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - peak_before
    assert grown < 2e9
    layer = 2 * 16_384 * 16_384 + 2 * 16_384 * 2048 + 3 * 16_384 * 57_344 + 2 * 16_384
    assert n_parameters(program) == 2 * 128_256 * 16_384 + 4 * layer + 16_384 == 17_893_048_320
    assert sum(t.n_bytes for t in program.graph.tensors if t.role is Role.PARAMETER) == 2 * 17_893_048_320
    assert {t.device.type for t in program.state.values()} == {"meta"}
    assert 60 * 4 < len(program.graph.ops) < 80 * 4
    assert sum(op.kind == "aten.linear.default" for op in program.graph.ops) == 4 * 7 + 1


def test_pictures_have_three_channels_unless_the_config_says_others() -> None:
    config = hf.BlipConfig(text_config=TEXT | SPECIAL, vision_config=PICTURE, projection_dim=8)
    with torch.device("meta"):
        assert example_inputs(hf.BlipModel(config), 2)["pixel_values"].shape == (2, 3, 16, 16)
        grey = hf.ViTModel(hf.ViTConfig(**PICTURE, num_channels=1))
        assert example_inputs(grey, 2)["pixel_values"].shape == (2, 1, 16, 16)


def test_sizes_that_are_none_are_said() -> None:
    module = hf.ViTModel(hf.ViTConfig(**PICTURE))
    for wrong in (-1, [3, 4, 5]):
        module.config.image_size = wrong
        with pytest.raises(InputError, match="the inputs of 'ViTModel' do not follow from its config"):
            example_inputs(module, 2)


def test_no_limit_of_positions_and_weights_that_are_made_on_the_processor(tmp_path: Path) -> None:
    """XLNet says -1 for the first, and calls torch.FloatTensor for the second."""
    program = read_config(write(hf.XLNetConfig(vocab_size=50, d_model=16, n_layer=1, n_head=2, d_inner=32), tmp_path))
    assert [tensor.shape for tensor in program.example_inputs] == [(1, 512)]
    assert {tensor.device.type for tensor in program.state.values()} == {"meta"}
