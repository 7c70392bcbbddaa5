"""Inputs of a network of transformers, with the shapes that follow from its config."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from graphs.common.errors import InputError, first_line, foreign_code
from graphs.common.shortages import failures
from graphs.importers.tracing_guards import quiet

SAMPLES = 16_000  # samples of one second of speech
SEQUENCE = 512  # tokens of one sample, unless the model has fewer positions
FRAMES = 128  # of a spectrogram whose length the config leaves open
SIDE = 4  # patches on each side of a picture whose size the config leaves open
PARTS = ("vision_config", "audio_config", "speech_config", "encoder_config", "audio_encoder", "encoder")
MELS = ("num_mel_bins", "n_mels", "input_feat_per_channel", "feature_size", "num_mels", "feature_projection_input_dim")
MODES = ("image", "video", "audio")

Inputs = dict[str, Tensor]


def example_inputs(module: nn.Module, batch: int) -> Inputs:
    """Keyword arguments with the shapes that the config asks for, on the current default device.

    Raise InputError if the network takes other inputs than tokens, images, videos, audio or time series.
    """
    accepted = inspect.signature(module.forward).parameters
    said = "the inputs of '{}' do not follow from its config ({}); give it as package.module:factory"
    with foreign_code(lambda error: said.format(type(module).__name__, first_line(error))):  # no common names for sizes
        inputs = {name: make(module, batch) for name, make in MAKERS.items() if name in accepted}
        inputs = _with_patches(module, inputs, accepted, batch)
        if not inputs:
            raise InputError(
                f"'{type(module).__name__}' takes {', '.join(accepted)}; give it as package.module:factory"
            )
        inputs |= text_inputs(module, batch)
    return _fitting(module, inputs)


def reads_more_than_text(module: nn.Module) -> bool:
    """Return whether a network of texts takes pictures, sounds or the like, too."""
    accepted = inspect.signature(module.forward).parameters
    return "input_ids" in accepted and any(name in accepted for name in MAKERS if name != "input_ids")


def text_inputs(module: nn.Module, batch: int) -> Inputs:
    """Return the keyword arguments of `example_inputs` that are texts, without tokens for anything else."""
    accepted = inspect.signature(module.forward).parameters
    decodes = getattr(module.config, "is_encoder_decoder", False)
    names = ("input_ids", "decoder_input_ids") if decodes else ("input_ids",)
    return {name: _tokens(module, batch) for name in names if name in accepted}


def _first(module: Any, names: Sequence[str]) -> Any:
    """The first of these fields that the config or a part of it has."""
    parts = [module.config, *(getattr(module.config, part, None) for part in PARTS)]
    values = (getattr(part, name, None) for part in parts if part is not None for name in names)
    return next((value for value in values if value), None)


def _needed(module: Any, names: Sequence[str]) -> int:
    value = _first(module, names)
    if not isinstance(value, int):
        raise AttributeError(f"'{type(module.config).__name__}' object has no attribute '{names[0]}'")
    return value


def _tokens(module: Any, batch: int) -> Tensor:
    config = getattr(module.config, "text_config", module.config)
    limits = position_limits(config, ("max_target_positions", "max_position_embeddings", "n_positions"))
    limits += [  # RoBERTa's positions begin after that of padding
        table.num_embeddings - table.padding_idx - 1
        for name, table in module.named_modules()
        if name.endswith("position_embeddings") and isinstance(table, nn.Embedding) and table.padding_idx is not None
    ]
    return torch.zeros(batch, min([SEQUENCE, *limits]), dtype=torch.long)


def position_limits(config: Any, names: Sequence[str]) -> list[int]:
    """Return the most positions by each of these names that a config has; XLNet's -1 is no limit."""
    found = (getattr(config, name, None) for name in names)
    return [int(limit) for limit in found if limit and limit > 0]


def _pixels(module: Any, batch: int) -> Tensor:
    config = getattr(module.config, "vision_config", module.config)
    size = getattr(config, "image_size", None) or 224  # convolutional networks take any size; 224 is usual
    height, width = (size, size) if isinstance(size, int) else size
    frames = [config.num_frames] if hasattr(config, "num_frames") else []  # of a video
    channels = getattr(config, "num_channels", None) or getattr(config, "in_channels", None) or 3
    return torch.zeros(batch, *frames, channels, height, width, dtype=module.dtype)


def _features(module: Any, batch: int) -> Tensor:
    """A spectrogram [batch, bands, frames]."""
    positions = _first(module, ("max_source_positions",)) or FRAMES // 2
    frames = 2 * int(positions)  # Whisper's first convolution halves them
    return torch.zeros(batch, _needed(module, MELS), frames, dtype=module.dtype)


def _audio(module: Any, batch: int) -> Tensor:
    """A spectrogram if the config has its size, else a second of audio."""
    config = module.config
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):
        return torch.zeros(batch, config.max_length, config.num_mel_bins, dtype=module.dtype)
    return torch.zeros(batch, SAMPLES, dtype=module.dtype)


def _series(module: Any, batch: int) -> Tensor:
    config = module.config
    return torch.zeros(batch, config.context_length, config.num_input_channels, dtype=module.dtype)


def _boxes(module: Any, batch: int) -> Tensor:
    """The corners of the box around each token of a page."""
    return torch.zeros(*_tokens(module, batch).shape, getattr(module.config, "dim_bbox", 4), dtype=torch.long)


MAKERS: Mapping[str, Callable[[Any, int], Tensor]] = {
    "input_ids": _tokens,
    "pixel_values": _pixels,
    "input_features": _features,
    "input_values": _audio,
    "past_values": _series,
    "bbox": _boxes,
}
"""The function that makes an input, by the name of the input."""


def _with_patches(module: Any, inputs: Inputs, accepted: Mapping[str, Any], batch: int) -> Inputs:
    """Replace pictures by their patches if the network takes them so, with a grid of frames, rows and columns.

    Its encoder of pictures calls the patches hidden states.
    """
    grid = next((name for name in ("image_grid_thw", "grid_thw") if name in accepted), None)
    if grid is None:
        return inputs
    config = getattr(module.config, "vision_config", module.config)
    side = SIDE * int(getattr(config, "spatial_merge_size", 1))
    named: Any = [getattr(config, name, None) for name in ("in_channels", "num_channels")]
    channels = int(next((count for count in named if count), 3))
    size = channels * int(getattr(config, "temporal_patch_size", 1)) * int(config.patch_size) ** 2
    patches = torch.zeros(batch * side**2, size, dtype=module.dtype)
    name = "pixel_values" if "pixel_values" in accepted else "hidden_states"
    return {**inputs, name: patches, grid: torch.tensor([[1, side, side]] * batch, device="cpu")}


def _fitting(module: nn.Module, inputs: Inputs) -> Inputs:
    """The inputs in the form that the network runs on; in the first form if it runs on none."""
    forms = [_with_placeholders(module, form) for form in _forms(module, inputs)]
    for form in forms if len(forms) > 1 else ():
        with failures(), torch.no_grad(), quiet():  # whatever a foreign network raises: it is not its form
            module(**form)
            return form
    return forms[0]


def _forms(module: nn.Module, inputs: Inputs) -> Iterator[Inputs]:
    """Yield the inputs in every form that networks ask for.

    A spectrogram is [batch, bands, frames], [batch, frames, bands] or has a channel before these; pictures next to a
    text are [batch, channels, height, width], or several for each sample.
    """
    features, pixels = inputs.get("input_features"), inputs.get("pixel_values")
    accepted = inspect.signature(module.forward).parameters
    if features is not None:
        length = torch.ones(features.shape[0], features.shape[2], dtype=torch.long)
        masks = {name: length for name in ("input_features_mask", "feature_attention_mask") if name in accepted}
        for each in (features, features.mT, features.mT[:, None]):
            yield inputs | {"input_features": each.contiguous()} | masks
    else:
        yield inputs
    if pixels is not None and pixels.dim() == 4 and "input_ids" in inputs:
        yield inputs | {"pixel_values": torch.ones_like(pixels[:, None])}  # Idefics leaves out pictures of zeros


def _with_placeholders(module: Any, inputs: Inputs) -> Inputs:
    """The inputs with as many tokens that stand for a picture or a sound as its features are."""
    tokens = inputs.get("input_ids")
    if tokens is None:
        return inputs
    start, batch, tokens = 1, tokens.shape[0], tokens.clone()  # which other forms of the inputs have, too
    kinds = torch.zeros_like(tokens)
    for number, mode in enumerate(MODES, 1):
        token = getattr(module.config, f"{mode}_token_id", getattr(module.config, f"{mode}_token_index", None))
        count = _n_features(module, mode, inputs)
        if isinstance(token, int) and count and count % batch == 0:
            stop = start + count // batch
            if stop >= tokens.shape[1]:
                rest = tokens.new_zeros(batch, stop + 1 - tokens.shape[1])
                tokens, kinds = torch.cat([tokens, rest], 1), torch.cat([kinds, rest], 1)
            tokens[:, start:stop].fill_(token)
            kinds[:, start:stop].fill_(number)
            start = stop
    typed = "mm_token_type_ids" in inspect.signature(module.forward).parameters
    return inputs | {"input_ids": tokens} | ({"mm_token_type_ids": kinds} if typed else {})


def _n_features(module: Any, mode: str, inputs: Inputs) -> int:
    """How many tokens stand for the pictures, videos or sounds among the inputs; 0 without such inputs."""
    own = getattr(module, f"get_{mode}_features", None)
    if own is None:
        return 0
    given = {name: inputs[name] for name in inspect.signature(own).parameters if name in inputs}
    with failures(), torch.no_grad(), quiet():  # whatever a foreign network raises: it has none of these
        found = own(**given)
        leaves = pytree.tree_leaves(getattr(found, "pooler_output", found))
        width = int(module.get_input_embeddings().weight.shape[1])
        return sum(each.numel() for each in leaves if isinstance(each, Tensor)) // width
    return 0
