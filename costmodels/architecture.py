"""Architecture: what makes a language model another network at the same cost, for the arguments of other trainers."""

from dataclasses import dataclass

from graphs.common.brief import Brief


@dataclass(frozen=True)
class Architecture(Brief):
    """Properties of a language model in its config.json, other than its sizes."""

    model_type: str  # the family, as transformers calls it
    activation: str = ""  # of the feed-forward part, as transformers calls it
    norm_epsilon: float = 0.0  # of the norms; 0 if the config has none
    rotary_base: float = 0.0  # 0 if positions are not rotated
    rotary_share: float = 1.0  # of a head's values that are rotated
    rotary_scaling: str = "default"  # how rotations are stretched for longer contexts, as transformers calls it
    rotary_factor: float = 1.0  # by how much
    attention_dropout: float = 0.0  # rate
    hidden_dropout: float = 0.0  # rate
    parallel_parts: bool = False  # whether attention and the feed-forward part read the same values
    other_biases: bool = (
        False  # whether biases are those of neither all products, nor queries, keys and values, nor none
    )
