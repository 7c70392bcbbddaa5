"""The modules that probes are made of, see `costmodels.calibrate.probes`."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

UNARY = "neg abs relu sign floor round reciprocal square exp log sqrt rsqrt sin cos tanh erf sigmoid log1p isnan"
FUNCTIONS = "gelu silu mish elu selu softplus hardtanh hardswish hardsigmoid relu6 leaky_relu celu"
BINARY = "add sub mul div maximum minimum eq lt ge atan2 fmod"


class DifferentiableInput(nn.Module):
    """A module whose input depends on a parameter, so that every operator in it has a backward pass."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.scale = module, nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        """The module's result."""
        return self.module(x * self.scale, *others)  # type: ignore[no-any-return]  # a module's result


class Elementwise(nn.Module):
    """Every simple operator on tensors of one size; each result is read once."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps [rows, width] to a few numbers."""
        y = x * 2.0 + 1.0
        results = [getattr(torch, name)(x) for name in UNARY.split()]
        results += [getattr(functional, name)(x) for name in FUNCTIONS.split()]
        return torch.stack([result.to(x.dtype).sum() for result in results] + [y.mean()])


class Pairs(nn.Module):
    """Operators on two tensors, and operators that copy, sort or reduce."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps [rows, width] to a few numbers."""
        y, row = x + 1.0, x[:1]
        ends = [getattr(torch, name)(x, y).to(x.dtype).sum() for name in BINARY.split()]
        ends += [getattr(torch, name)(x, row).to(x.dtype).mean() for name in BINARY.split()[:5]]
        turned = x.t().contiguous()
        made = [turned, x.repeat(2, 1), functional.pad(x, (1, 1)), x.flip(0), torch.roll(x, 1, 0), torch.stack([x, y])]
        made += [torch.where(x > 0, x, y), x.masked_fill(x > 0, 0.0), x.cumsum(-1), torch.sort(x, dim=-1)[0]]
        made += [functional.softmax(x, -1), functional.log_softmax(x, -1), functional.layer_norm(x, x.shape[-1:])]
        made += [torch.tril(x), x.pow(2.5)]
        made += [torch.addcmul(x, x, y), torch.lerp(x, y, 0.5), x.clamp(-1.0, 1.0), x.double().float(), x.topk(4)[0]]
        ends += [result.amax() for result in made]
        ends += [x.var(-1).sum(), x.prod(), x.norm(), x.min(), x.argmax(-1).to(x.dtype).sum(), x.logsumexp(-1).sum()]
        return torch.stack(ends)


class Pictures(nn.Module):
    """Other operators on images."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, channels, height, width] to a few numbers."""
        channels = x.shape[1]
        made = [functional.interpolate(x, scale_factor=2.0, mode=mode) for mode in ("nearest", "bilinear")]
        made += [functional.pixel_unshuffle(x, 2), functional.group_norm(x, 8), functional.instance_norm(x)]
        made += [functional.adaptive_max_pool2d(x, 4), functional.adaptive_avg_pool2d(x, 7)]
        made += [functional.prelu(x, x[0, :, 0, 0]), x.permute(0, 2, 3, 1).contiguous()]
        made += [x.flatten(2).transpose(1, 2).reshape(x.shape[0], -1), torch.cat([x, x], 1)]
        made += [functional.pad(x, (1, 1, 1, 1)), functional.glu(x, 1)]
        made += [functional.batch_norm(x, x.new_zeros(channels), x.new_ones(channels)), x[:, : channels // 2].clone()]
        made += [functional.conv_transpose2d(x, x.new_ones(channels, 16, 2, 2), stride=2)]
        made += [functional.max_pool2d(x, 5, 1, 2), functional.local_response_norm(x, 5)]
        return torch.stack([result.amax() for result in made])


class BranchedChain(nn.Module):
    """A chain of modules with branches at some positions, whose results form one vector."""

    def __init__(self, chain: Sequence[nn.Module], branches: Sequence[tuple[int, nn.Module]]) -> None:
        super().__init__()
        self.chain = nn.ModuleList(chain)
        self.branches = nn.ModuleList(module for _, module in branches)
        self.positions = [position for position, _ in branches]

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, channels, height, width] to [batch, sum of the branches' channels]."""
        ends = []
        for i, module in enumerate(self.chain, 1):
            x = module(x)
            for position, branch in zip(self.positions, self.branches, strict=True):
                if position == i:
                    ends.append(branch(x).amax((2, 3)))
        return torch.cat(ends, dim=1)


class ResidualConcat(nn.Module):
    """A residual connection and a concatenation."""

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape."""
        half = torch.cat([x, x], dim=1)[:, : x.shape[1]]
        return x + half.mul(0.5)


class ImageStems(nn.Module):
    """First layers of image networks: three channels in, large windows and strides."""

    def __init__(self) -> None:
        super().__init__()
        made = [
            (width, kernel, stride)
            for width in (32, 64, 96, 192)
            for kernel, stride in ((3, 1), (3, 2), (4, 4), (5, 1), (7, 2), (8, 8), (9, 3), (11, 4), (14, 14), (16, 16))
            if width * kernel**2 / stride**2 < 1000
        ]
        made += [(384, 16, 16), (1024, 14, 14), (768, 32, 32), (512, 8, 8)]
        self.stems = nn.ModuleList(nn.Conv2d(3, w, k, s, k // 2 if s < k else 0) for w, k, s in made)

    def forward(self, x: Tensor) -> Tensor:
        """Applies every layer to the image."""
        return torch.cat([functional.relu(stem(x)).amax((2, 3)) for stem in self.stems], dim=1)


class TransformerBlock(nn.Module):
    """Layers of a transformer in the styles of three families."""

    def __init__(self, width: int, heads: int, style: str) -> None:
        super().__init__()
        self.style, self.heads = style, heads
        inner = 4 * width if style != "llama" else 8 * width // 3 // 64 * 64
        self.qkv = nn.Linear(width, 3 * width, bias=style != "llama")
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width, bias=style != "llama")
        self.up, self.gate, self.down = nn.Linear(width, inner), nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide = nn.Parameter(torch.empty(width, inner))
        self.narrow = nn.Parameter(torch.empty(inner, width))
        self.bias_wide, self.bias_narrow = nn.Parameter(torch.empty(inner)), nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, length, width] to the same."""
        normed = self.norm1(x) if self.style != "llama" else self._rms(x)
        q, k, v = (self._split(part) for part in self.qkv(normed).chunk(3, dim=-1))
        if self.style == "bert":
            mask = torch.ones(1, 1, x.shape[1], x.shape[1], dtype=torch.bool, device=x.device)
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        elif self.style == "gpt":
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = torch.matmul(self._turn(q), self._turn(k).transpose(2, 3)) * 0.125
            mixed = torch.matmul(functional.softmax(scores, dim=-1), v)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape)) + self.query(x)
        return x + self._feed_forward(self.norm2(x))

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def _rms(self, x: Tensor) -> Tensor:
        return self.norm1.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def _turn(self, x: Tensor) -> Tensor:
        a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        return x * 0.5 + torch.cat((-b, a), dim=-1) * 0.5

    def _feed_forward(self, x: Tensor) -> Tensor:
        if self.style == "bert":
            return self.down(functional.gelu(self.up(x)))  # type: ignore[no-any-return]  # a module's result
        if self.style == "llama":
            return self.down(functional.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]
        flat = torch.addmm(self.bias_wide, x.reshape(-1, x.shape[-1]), self.wide)
        curve = 0.5 * flat * (1.0 + torch.tanh(0.8 * (flat + 0.044715 * torch.pow(flat, 3.0))))
        return torch.addmm(self.bias_narrow, curve, self.narrow).view(x.shape)


class Attentions(nn.Module):
    """Attention of several sizes, each on a new input: with a mask, causal and plain."""

    def __init__(self, sizes: Sequence[tuple[int, int, int, int]]) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(self, x: Tensor) -> Tensor:
        """Makes all inputs from one row; sizes are batch, heads, rows and width of a head."""
        ends = []
        for i, (batch, heads, rows, width) in enumerate(self.sizes):
            made = x[: rows * heads * width].view(1, rows, heads, width).expand(batch, -1, -1, -1) * 1.0
            q, k, v = (part.transpose(1, 2) for part in (made, made + 1.0, made * 0.5))
            mask = torch.ones(1, 1, rows, rows, dtype=torch.bool, device=x.device) if i % 3 == 0 else None
            ends.append(functional.scaled_dot_product_attention(q, k, v, mask, is_causal=i % 3 == 1).amax())
        return torch.stack(ends)


class Views(nn.Module):
    """Operators that move no or few elements."""

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        """Maps [batch, rows, width] and numbers below 64 to a few numbers."""
        ends = []
        for part in (torch.split(x, x.shape[1] // 4, 1)[0], x.chunk(4, 2)[0]):
            turned = functional.dropout(part.transpose(1, 2), 0.1, self.training).flatten(1).unsqueeze(1).squeeze(1)
            table = torch.ones(64, part.shape[2], device=x.device)
            rows = functional.embedding(words[:, : part.shape[1]], table) + part.reshape(part.shape).view(part.shape)
            ends += [turned[:, None].permute(0, 2, 1).amax(), rows[:, 0].amax(), rows.select(1, 0).amin()]
            place = torch.arange(part.shape[1], device=x.device)
            mask = (place[None, :] >= place[:, None]) & (words[:, : part.shape[1], None] != 3)
            ends += [mask.to(x.dtype).sum(), place.expand(4, -1).to(x.dtype).cumsum(-1).sum(), words.diff(dim=-1).sum()]
            ends += [torch.gather(words, 1, place[None].expand(len(words), -1)).sum(), torch.zeros_like(part).sum()]
        return torch.stack([end.to(x.dtype) for end in ends])


class WordScores(nn.Module):
    """A table of words, and scores of each word at the end."""

    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        self.table, self.scores = nn.Embedding(words, width), nn.Linear(width, words, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        """Maps numbers of words [batch, length] to the best of their scores."""
        scores = functional.log_softmax(self.scores(torch.tanh(self.table(words))), -1)
        return scores.amax(-1) if self.training else scores.argmax(-1)


class ProductChain(nn.Module):
    """Linear layers and matrix products, each on a new input."""

    def __init__(self, sizes: Sequence[tuple[int, int, int]]) -> None:
        super().__init__()
        self.rows = [rows for rows, _, _ in sizes]
        self.weights = nn.ParameterList(torch.empty(out, inner) for _, inner, out in sizes)
        self.turned = nn.ParameterList(torch.empty(inner, out) for _, inner, out in sizes)
        self.biases = nn.ParameterList(torch.empty(out) for _, _, out in sizes)

    def forward(self, x: Tensor) -> Tensor:
        """Makes all inputs from one row."""
        ends = []
        for rows, weight, turned, bias in zip(self.rows, self.weights, self.turned, self.biases, strict=True):
            made = x[:, : weight.shape[1]].expand(rows, -1).clone()
            ends.append(functional.linear(made, weight, bias).amax() + torch.addmm(bias, made, turned).amax())
        return torch.stack(ends)


class Recurrent(nn.Module):
    """A stack of recurrent layers: two LSTMs, and with ``kinds`` also a GRU and a plain RNN."""

    def __init__(self, inner: int, hidden: int, kinds: bool) -> None:
        super().__init__()
        made = [nn.LSTM(inner, hidden, batch_first=True), nn.LSTM(hidden, hidden, batch_first=True)]
        others = (nn.GRU(hidden, hidden, batch_first=True), nn.RNN(hidden, hidden, batch_first=True))
        self.layers = nn.ModuleList((*made, *others) if kinds else made)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, length, inner] to [batch, length, hidden]."""
        for layer in self.layers:
            x = layer(x)[0]
        return x
