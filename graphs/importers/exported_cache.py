"""A language model in a .pt2 file that keeps its cache in buffers, as a module that takes and returns the cache.

An exported program with a cache, such as transformers writes for ExecuTorch, changes its buffers with each call. Here
they are given to it, so the same operators are functions of the cache::

    ids, positions ──► exported program ──► logits        ids, positions, last, ──► same operators ──► logits of last,
                          │    ▲                          caches                                      caches
                          ▼    │
                       key_cache_0, ...

A buffer that is overwritten as a whole before it is read, such as a copy of the position, is no cache.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from graphs.common.errors import InputError
from graphs.importers.functionalize import is_view, written_by

WAYS_OUT = (
    "export it by transformers' convert_and_export_with_cache for a batch of 1, or give the model's config.json or a "
    "function that returns its module"
)

Range: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class ExportedCache:
    """The inputs of an exported language model, and the buffers that are its cache.

    Attributes:
        ids: the number of the input [1, tokens].
        positions: the input of positions, of 0 to 2 dimensions.
        tokens: the least and the most of a call.
        begins: whether the position of the first token alone is taken, not one for each token.
        last_alone: whether it returns the logits of the last token alone, [1, vocabulary].
        state: its caches by their paths.
        places: the dimension with a place for each position, of the caches that have one; each token changes the others
            as a whole.
    """

    ids: int
    positions: fx.Node
    tokens: Range
    begins: bool
    last_alone: bool
    state: Mapping[str, Tensor]
    places: Mapping[str, int]

    @property
    def context(self) -> int:
        """The positions of a sequence: a call with the least tokens has to end within the cache."""
        return min(self.state[path].shape[place] for path, place in self.places.items()) - self.tokens[0] + 1

    def sizes(self, chunks: Sequence[int]) -> list[int]:
        """Return the numbers of tokens that a pass may have besides one, of those asked for and the least of a call."""
        if self.last_alone or len(self.places) < len(self.state):
            return []  # a pass cannot be filled up
        least, most = self.tokens
        return [size for size in sorted({*chunks, least}) if max(2, least) <= size <= min(most, self.context)]


def cache_of(exported: ExportedProgram, module: fx.GraphModule) -> ExportedCache:
    """Return the inputs and the cache of an exported language model.

    Args:
        exported: the program.
        module: what ``exported.module()`` has made of it.

    Raises:
        InputError: if it has no cache, is for several sequences, takes something else than ids and positions, or
            returns something else than logits.
    """
    state = _state(module)
    if not state:
        raise InputError(f"it keeps nothing from one call to the next, so it has no cache; {WAYS_OUT}")
    ids, positions = _inputs(module)
    given = ids.meta["val"]
    places = _places(module, state)
    if not places:
        raise InputError(f"no buffer has a place for each position ('{next(iter(state))}' has none); {WAYS_OUT}")
    rows = max(state[path].shape[0] for path in places)
    if rows > 1:
        raise InputError(f"it was exported for {rows:,} sequences, which share one position in it; {WAYS_OUT}")
    tokens, last_alone = _tokens(exported, given), _last_alone(module)
    whole = next((path for path in state if path not in places), None)
    if tokens[0] > 1 and (whole or last_alone):
        why = f"each changes '{whole}'" if whole else "it returns the logits of the last one alone"
        raise InputError(f"it takes {tokens[0]:,} tokens at least, which cannot be filled up, as {why}; {WAYS_OUT}")
    if whole and state[whole].any():
        raise InputError(f"a sequence begins with other numbers than 0 in '{whole}'; export it before its first token")
    places_given = positions.meta["val"].shape[-1:]
    begins = all(isinstance(size, int) and size == 1 for size in places_given)
    number = list(module.graph.find_nodes(op="placeholder")).index(ids)
    return ExportedCache(number, positions, tokens, begins, last_alone, state, places)


def _state(module: fx.GraphModule) -> dict[str, Tensor]:
    """Return the buffers and constants that a program writes, and has read before it has written all of them."""
    written = {base.target for node in module.graph.nodes for base in _written_state(node)}
    found: dict[str, Tensor] = {}
    seen: set[Any] = set()
    for node in module.graph.nodes:
        for read in node.all_input_nodes:
            if read.op != "get_attr" or read.target in seen:
                continue
            seen.add(read.target)
            replaced = node.target is torch.ops.aten.copy_.default and node.args[0] is read
            if read.target in written and not replaced:
                found[str(read.target)] = fx.graph_module._get_attr(module, str(read.target)).detach()
    return found


def _written_state(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the buffers and constants that an operator writes in place, if need be through views."""
    for base in written_by(node):
        while base.op == "call_function" and base.all_input_nodes and is_view(base):
            base = base.all_input_nodes[0]
        if base.op == "get_attr":
            yield base


def _places(module: fx.GraphModule, state: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the dimension in which operators write caches at positions, for those that are written so."""
    found = {}
    for node in module.graph.nodes:
        cache = node.args[0] if len(node.args) > 1 else None
        if not isinstance(cache, fx.Node) or cache.target not in state:
            continue
        name = str(node.target).removeprefix("aten.").partition(".")[0].removesuffix("_")
        if name == "index_copy":
            dim: Any = node.args[1]
            found[str(cache.target)] = dim % state[str(cache.target)].dim()
        elif name == "index_put":
            indices: Any = node.args[1]
            found[str(cache.target)] = max(number for number, index in enumerate(indices) if index is not None)
    return found


def _inputs(module: fx.GraphModule) -> tuple[fx.Node, fx.Node]:
    """Return the inputs that are token ids, [1, tokens], and their positions."""
    inputs = list(module.graph.find_nodes(op="placeholder"))
    whole = [node for node in inputs if getattr(node.meta.get("val"), "dtype", None) in (torch.int64, torch.int32)]
    positions = [node for node in whole if node.meta["val"].dim() < 2 or "pos" in str(node.target)]
    ids = [node for node in whole if node not in positions and node.meta["val"].dim() == 2]
    if (len(ids), len(positions), len(inputs)) != (1, 1, 2):
        raise InputError(
            f"it takes {', '.join(str(node.target) for node in inputs)}, and not token ids [1, tokens] and their "
            f"positions [tokens] alone; {WAYS_OUT}"
        )
    return ids[0], positions[0]


def _tokens(exported: ExportedProgram, ids: Tensor) -> Range:
    """Return the least and the most tokens of a call."""
    size = ids.shape[1]
    if not isinstance(size, torch.SymInt):
        return size, size
    limits = exported.range_constraints.get(size.node.expr)
    if limits is None:  # such as a multiple of another size
        return size.node.hint, size.node.hint
    return max(1, int(limits.lower)), int(min(limits.upper, 2**31))


def _last_alone(module: fx.GraphModule) -> bool:
    """Return whether a program returns the logits of its last token alone."""
    results: Any = module.graph.output_node().args[0]
    values = [node.meta.get("val") if isinstance(node, fx.Node) else None for node in results]
    if len(values) != 1 or not isinstance(values[0], Tensor) or values[0].dim() not in (2, 3):
        raise InputError(f"it returns {len(values)} values, and not logits [1, tokens, vocabulary] alone; {WAYS_OUT}")
    return values[0].dim() == 2


class ExportedCacheModel(nn.Module):
    """An exported language model that takes tokens, their positions and its cache, and returns logits and the cache."""

    def __init__(self, model: fx.GraphModule, about: ExportedCache) -> None:
        """Wrap what ``ExportedProgram.module()`` returns, see `cache_of`."""
        super().__init__()
        self.model, self.about = model, about
        self.written = {str(base.target) for node in model.graph.nodes for base in _written_state(node)}
        self.training = False

    def forward(
        self, ids: Tensor, positions: Tensor, last: Tensor, caches: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Run new tokens, at their positions, after those that the caches hold.

        Args:
            ids: [1, tokens] int64; more than count, with any after them.
            positions: [1, tokens] int64, one after the other.
            last: [1] int64, which token the logits are of.
            caches: in the order of ``about.state``.

        Returns:
            The logits, [1, vocabulary], and the caches.
        """
        least = self.about.tokens[0]
        if least > 1:
            ids = torch.cat([ids, ids.new_zeros(1, least)], dim=1)[:, : max(least, ids.shape[1])]
            positions = positions[:, 0, None] + torch.arange(ids.shape[1], device=ids.device)
        held = {path: fx.graph_module._get_attr(self.model, path).detach().clone() for path in self.written}
        held |= {path: cache.clone() for path, cache in zip(self.about.state, caches, strict=True)}
        logits = self._run(ids, positions, held)
        logits = logits if self.about.last_alone else logits[torch.arange(1, device=ids.device), last]
        return logits, [held[path] for path in self.about.state]

    def _run(self, ids: Tensor, positions: Tensor, held: Mapping[str, Tensor]) -> Tensor:
        """Run the exported operators on buffers of this call, with the module that each is from."""
        like = self.about.positions.meta["val"]
        positions = positions[:, 0, None] if self.about.begins else positions
        positions = positions[(0,) * (2 - like.dim())].to(like.dtype)
        given = (ids, positions) if self.about.ids == 0 else (positions, ids)
        with fx.traceback.preserve_node_meta():
            (logits,) = _WithBuffers(self.model, held).run(*given, enable_io_processing=False)
        return logits  # type: ignore[no-any-return]  # fx has no types here


class _WithBuffers(fx.Interpreter):
    """Runs a graph with other tensors in place of some of its buffers."""

    def __init__(self, module: fx.GraphModule, held: Mapping[str, Tensor]) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.held = held

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self.held[target] if target in self.held else super().get_attr(target, args, kwargs)
