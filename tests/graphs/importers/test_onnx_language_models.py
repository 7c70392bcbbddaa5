"""What exporters of language models write: weights of few bits, attention with caches, rotary positions.

The truth is written out by hand, and is onnxruntime where that is installed.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from graphs.common.errors import InputError
from graphs.importers.load import load_program
from tests.graphs.onnx_models import assert_close, ints, model_of, run, saved, value_info

DOMAIN = "com.microsoft"
HEADS, SHARED, SIZE = 4, 2, 16  # heads of queries, of keys and values, and their width
RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    """Numbers around 0."""
    return RANDOM.normal(size=shape).astype(np.float32)


def bytes_(*shape: int) -> np.ndarray:
    """Any bytes."""
    return RANDOM.integers(0, 256, shape).astype(np.uint8)


def fused(kind: str, operands: Sequence[Any], n_outputs: int = 1, **attributes: Any) -> tuple[ModelProto, Any]:
    """A model of one operator of onnxruntime's, and what to feed it with; operands that are None are left out."""
    names = ["" if value is None else f"x{i}" for i, value in enumerate(operands)]
    feeds = {name: np.asarray(value) for name, value in zip(names, operands, strict=True) if name}
    inputs = [
        value_info(name, value.shape, helper.np_dtype_to_tensor_dtype(value.dtype)) for name, value in feeds.items()
    ]
    outputs = [f"y{i}" for i in range(n_outputs)]
    model = model_of([helper.make_node(kind, names, outputs, "node", domain=DOMAIN, **attributes)], inputs, outputs)
    model.opset_import.add(domain=DOMAIN, version=1)
    return model, feeds


def by_onnxruntime(model: ModelProto, feeds: Any) -> list[np.ndarray]:
    """The outputs by onnxruntime, which must be installed."""
    runtime = pytest.importorskip("onnxruntime", reason="the peers' onnxruntime is not installed")
    for output in model.graph.output:
        output.ClearField("type")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    results: list[np.ndarray] = runtime.InferenceSession(model.SerializeToString(), options).run(None, feeds)
    return results


def numbers_of(packed: np.ndarray, bits: int) -> np.ndarray:
    """The numbers in the bytes of a row, the low bits first."""
    rows = packed.reshape(packed.shape[0], -1)
    per_byte = 8 // bits
    found = [[(int(row[i // per_byte]) >> bits * (i % per_byte)) % 2**bits for i in range(len(row) * per_byte)]
             for row in rows]  # fmt: skip
    return np.array(found)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", ["none", "packed", "real"])
def test_products_with_weights_in_blocks(bits: int, zeros: str) -> None:
    rows = 3
    for block, width, bias in ((16, 40, True), (32, 64, False), (32, 33, True)):
        n_blocks = -(-width // block)
        packed, scales = bytes_(rows, n_blocks, block * bits // 8), floats(rows, n_blocks)
        per_row = {"none": None, "packed": bytes_(rows, -(-n_blocks * bits // 8)), "real": floats(rows, n_blocks)}
        zero, added, x = per_row[zeros], floats(rows) if bias else None, floats(2, 1, width)
        away = np.full((rows, n_blocks), 2.0 ** (bits - 1)) if zero is None else zero
        away = numbers_of(away, bits)[:, :n_blocks] if zeros == "packed" else away
        spread = [np.repeat(each, block, 1)[:, :width] for each in (away, scales)]
        weight = (numbers_of(packed, bits)[:, :width] - spread[0]) * spread[1]
        wanted = (x @ weight.T + (0 if added is None else added)).astype(np.float32)
        model, feeds = fused("MatMulNBits", [x, packed, scales, zero, None, added],
                             K=width, N=rows, bits=bits, block_size=block, accuracy_level=4)  # fmt: skip
        assert_close(run(model, feeds), [wanted])


@pytest.mark.parametrize(("bits", "with_zeros"), [(4, True), (4, False), (8, True)])
def test_tables_in_blocks(bits: int, with_zeros: bool) -> None:
    packed, scales = bytes_(5, 64 * bits // 8), floats(5, 2)
    zero = bytes_(5, -(-2 * bits // 8)) if with_zeros else None
    away = np.full((5, 2), 2 ** (bits - 1)) if zero is None else numbers_of(zero, bits)[:, :2]
    table = (numbers_of(packed, bits) - np.repeat(away, 32, 1)) * np.repeat(scales, 32, 1)
    rows = ints([0, -1], [4, 2])
    model, feeds = fused(
        "GatherBlockQuantized", [packed, rows, scales, zero], bits=bits, block_size=32, quantize_axis=1
    )
    assert_close(run(model, feeds), [table[rows].astype(np.float32)])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_products_of_integers_that_become_real(dtype: type) -> None:
    b: np.ndarray = bytes_(6, 5).astype(dtype)
    zeros: np.ndarray = np.arange(5).astype(dtype)
    bias = floats(5)
    scales = np.abs(floats(5)) + np.float32(0.1)
    a, scale, zero = bytes_(3, 6), np.array([0.1], np.float32), np.array([7], np.uint8)
    columns = b.astype(np.float64) - zeros
    wanted = (a.astype(np.float64) - 7) @ columns * scale * scales + bias
    model, feeds = fused("MatMulIntegerToFloat", [a, b, scale, scales, zero, zeros, bias])
    assert_close(run(model, feeds), [wanted.astype(np.float32)])
    x = np.array([[0.0, 255.0, 3.0, 4.4, 4.6, 100.0]], np.float32)  # steps of 1, from 0 on
    model, feeds = fused("DynamicQuantizeMatMul", [x, b, scales, zeros, bias])
    assert_close(run(model, feeds), [(np.round(x) @ columns * scales + bias).astype(np.float32)])


def turned(x: np.ndarray, position: int, angles: Sequence[np.ndarray], interleaved: bool) -> np.ndarray:
    """A row at a position, pair by pair."""
    result, half, (cos, sin) = x.copy(), len(angles[0][0]), angles
    for i in range(half):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        c, s = cos[position, i], sin[position, i]
        result[a], result[b] = x[a] * c - x[b] * s, x[a] * s + x[b] * c
    return result


def grouped_by_hand(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    past: Sequence[np.ndarray],
    total: int,
    lasts: Sequence[int],
    **traits: Any,
) -> list[np.ndarray]:
    """Attend from each step of each head to the keys before it; unspecified rows of caches stay as they were."""
    batch, steps, _ = q.shape
    size = max(past[0].shape[2], total)
    caches = [np.zeros((batch, SHARED, size, SIZE), np.float32) for _ in past]
    y = np.zeros_like(q)
    angles = traits.get("angles")
    for b, step in itertools.product(range(batch), range(steps)):
        at = step if steps == total else lasts[b] + 1 - steps + step
        for cache, old, new in zip(caches, past, (k, v), strict=True):
            if step == 0:
                cache[b, :, : old.shape[2]] = old[b]
            rows = new[b, step].reshape(SHARED, SIZE)
            turn = angles if new is k else None
            cache[b, :, at] = rows if turn is None else [turned(row, at, turn, traits["interleaved"]) for row in rows]
        for head in range(HEADS):
            row = q[b, step].reshape(HEADS, SIZE)[head]
            row = row if angles is None else turned(row, at, angles, traits["interleaved"])
            first = max(0, at + 1 - traits["window"]) if traits.get("window") else 0
            keys, values = (cache[b, head * SHARED // HEADS, first : at + 1] for cache in caches)
            scores = keys @ row * traits.get("scale", SIZE**-0.5)
            scores = traits["cap"] * np.tanh(scores / traits["cap"]) if traits.get("cap") else scores
            scores = scores + traits["bias"][0, head, step, first : at + 1] if "bias" in traits else scores
            shares = np.exp(scores)
            rest = np.exp(traits["sink"][head]) if "sink" in traits else float(traits.get("smooth", False))
            y[b, step, head * SIZE : (head + 1) * SIZE] = shares @ values / (shares.sum() + rest)
    return [y, *caches]


PASSES = {  # steps, cache before, steps with the cache, last position of each sample
    "prompt": (3, 0, 3, [2, 2]),
    "prompt into a buffer": (3, 6, 3, [2, 2]),
    "step": (1, 4, 5, [4, 2]),
    "step into a buffer": (1, 6, 4, [3, 1]),
    "several steps": (2, 3, 5, [4]),
}
TRAITS: list[dict[str, Any]] = [
    {},
    {"angles": True, "interleaved": False},
    {"angles": True, "interleaved": True, "window": 2, "packed": True},
    {"window": 3, "bias": True},
    {"cap": 2.0, "smooth": True},
    {"sink": True, "scale": 0.5, "packed": True},
    {"angles": True, "interleaved": False, "positions": True, "cap": 3.0, "bias": True, "sink": True, "window": 2},
]


def grouped(name: str, given: dict[str, Any]) -> tuple[ModelProto, Any, list[np.ndarray]]:
    """A model of a GroupQueryAttention, what to feed it with, and the results by hand."""
    steps, n_past, total, lasts = PASSES[name]
    batch, traits = len(lasts), dict(given)
    q, k, v = (floats(batch, steps, count * SIZE) for count in (HEADS, SHARED, SHARED))
    past = [floats(batch, SHARED, n_past, SIZE) for _ in range(2)]
    tables = [floats(9, SIZE // 2), floats(9, SIZE // 2)] if traits.get("angles") else [None, None]
    first = [0 if steps == total else last + 1 - steps for last in lasts]
    positions = (
        ints(*[[start + i for i in range(steps)] for start in first]) if traits.pop("positions", False) else None
    )
    bias, sink = (
        floats(1, HEADS, steps, total) if "bias" in traits else None,
        floats(HEADS) if "sink" in traits else None,
    )
    packed = traits.pop("packed", False)
    heads = [np.concatenate([q, k, v], -1), None, None] if packed else [q, k, v]
    names = {"window": "local_window_size", "cap": "softcap", "scale": "scale", "interleaved": "rotary_interleaved"}
    attributes = {names[key]: value for key, value in traits.items() if key in names}
    attributes |= {"do_rotary": 1} if traits.get("angles") else {}
    attributes |= {"smooth_softmax": 1} if traits.get("smooth") else {}
    operands = [*heads, *past, np.array(lasts, np.int32), np.array([total], np.int32), *tables, positions, bias, sink]
    traits |= {"bias": bias} if bias is not None else {}
    traits |= {"sink": sink} if sink is not None else {}
    traits |= {"angles": tables} if traits.get("angles") else {}
    model, feeds = fused("GroupQueryAttention", operands, 3, num_heads=HEADS, kv_num_heads=SHARED, **attributes)
    return model, feeds, grouped_by_hand(q, k, v, past, total, lasts, **traits)


@pytest.mark.parametrize("name", PASSES)
def test_grouped_attention_in_one_pass(name: str) -> None:
    for given in TRAITS:
        model, feeds, wanted = grouped(name, given)
        assert_close(run(model, feeds), wanted)


def compared(results: Sequence[Any], lasts: Sequence[int]) -> list[np.ndarray]:
    """The results whose values are specified: caches up to each sample's last step."""
    y, *caches = (np.asarray(each) for each in results)
    return [y, *(cache[b, :, : last + 1] for cache in caches for b, last in enumerate(lasts))]


@pytest.mark.parametrize("name", PASSES)
def test_grouped_attention_is_onnxruntimes(name: str) -> None:
    for given in TRAITS:
        model, feeds, _ = grouped(name, given)
        wanted = compared(by_onnxruntime(model, feeds), PASSES[name][3])
        results = [torch.from_numpy(each) for each in compared(run(model, feeds), PASSES[name][3])]
        assert_close(results, wanted)


def test_queries_and_keys_may_have_norms_of_their_own() -> None:
    q, k, v = floats(1, 3, HEADS * SIZE), floats(1, 3, SHARED * SIZE), floats(1, 3, SHARED * SIZE)
    norms = [floats(SIZE), floats(SIZE)]
    lengths = [None, None, np.array([2], np.int32), np.array([3], np.int32)]
    keys: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": SHARED}
    wanted = []
    for x, weight, eps in zip((q, k), norms, (1e-2, 1e-6), strict=True):
        rows = x.reshape(1, 3, -1, SIZE)
        wanted.append((rows / np.sqrt((rows**2).mean(-1, keepdims=True) + eps) * weight).reshape(x.shape))
    plain = run(*fused("GroupQueryAttention", [*wanted, v, *lengths], 3, **keys))
    given = [q, k, v, *lengths, *[None] * 7, *norms]
    assert_close(run(*fused("GroupQueryAttention", given, 3, q_norm_epsilon=1e-2, **keys)), [x.numpy() for x in plain])


def test_a_pass_that_is_not_causal_sees_each_samples_keys() -> None:
    operands = [floats(2, 3, count * SIZE) for count in (HEADS, SHARED, SHARED)]
    lengths = [None, None, np.array([2, 1], np.int32), np.array([3], np.int32)]
    model, feeds = fused(
        "GroupQueryAttention", [*operands, *lengths], 3, num_heads=HEADS, kv_num_heads=SHARED, causal=0
    )
    results = [[y[0], y[1, :2]] for y, *_ in (run(model, feeds), by_onnxruntime(model, feeds))]
    assert_close([torch.as_tensor(each) for each in results[0]], [np.asarray(each) for each in results[1]])


def test_a_pass_over_a_cache_gives_what_a_pass_over_all_steps_does() -> None:
    width, n_heads = 8, 2
    x, weight, bias = floats(2, 5, 6), floats(6, 3 * width), floats(3 * width)
    q, k, v = np.split(x @ weight + bias, 3, -1)
    keys = {"num_heads": n_heads, "unidirectional": 1}
    (whole, present) = run(*fused("Attention", [x, weight, bias], 2, **keys))
    past = present[:, :, :, :3].numpy()
    assert_close(run(*fused("Attention", [x[:, 3:], weight, bias, None, past], 2, **keys)),
                 [whole[:, 3:].numpy(), present.numpy()])  # fmt: skip
    apart = [whole.numpy(), present[0].numpy(), present[1].numpy()]
    assert_close(run(*fused("MultiHeadAttention", [q, k, v], 3, **keys)), apart)
    rest = [q[:, 3:], k[:, 3:], v[:, 3:], None, None, None, past[0], past[1]]
    assert_close(run(*fused("MultiHeadAttention", rest, 3, **keys)), [apart[0][:, 3:], *apart[1:]])
    divided = [each.reshape(2, 5, n_heads, 1, width // n_heads) for each in (q, k, v)]
    together, pair = np.concatenate(divided, 3), np.concatenate(divided[1:], 3)
    assert_close(run(*fused("MultiHeadAttention", [together, None, None], 1, **keys)), apart[:1])
    assert_close(run(*fused("MultiHeadAttention", [q, pair, None], 1, **keys)), apart[:1])


@pytest.mark.parametrize("unidirectional", [0, 1])
def test_masks_of_every_form_are_onnxruntimes(unidirectional: int) -> None:
    ones, ends = np.ones((2, 4), np.int32), np.array([4, 2], np.int32)
    masks = [None, ends, np.concatenate([ends, np.array([1, 0], np.int32)]), np.tril(ones, 2)]
    masks += [np.tril(np.ones((2, 4, 4), np.int32), 2)]
    for mask, added in itertools.product(masks, (None, floats(1, 2, 4, 4))):
        operands = [floats(2, 4, 6), floats(6, 24), None, mask, None, added]
        model, feeds = fused("Attention", operands, num_heads=2, unidirectional=unidirectional)
        assert_close(run(model, feeds), by_onnxruntime(model, feeds))


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_positions_are_those_of_the_standard(interleaved: int) -> None:
    for flat, part, first in itertools.product((False, True), (0, 4), (False, True)):
        half = (part or 8) // 2
        x, cos, sin = floats(2, 3, 16) if flat else floats(2, 2, 3, 8), floats(9, half), floats(9, half)
        start = ints(4)
        positions = np.tile(np.arange(4, 7), (2, 1)) if first else ints([0, 1, 2], [3, 5, 8])
        keys: dict[str, Any] = {"rotary_embedding_dim": part, "num_heads": 2} if part or flat else {}
        model, feeds = fused("RotaryEmbedding", [x, start if first else positions, cos, sin],
                             interleaved=interleaved, **keys)  # fmt: skip
        node = helper.make_node("RotaryEmbedding", ["x", "cos", "sin", "at"], ["y"], interleaved=interleaved, **keys)
        inputs = [value_info(name, each.shape) for name, each in (("x", x), ("cos", cos), ("sin", sin))]
        standard = model_of([node], [*inputs, value_info("at", positions.shape, TensorProto.INT64)], ["y"], opset=23)
        truth = ReferenceEvaluator(standard).run(None, {"x": x, "cos": cos, "sin": sin, "at": positions})
        assert isinstance(truth, list)
        assert_close(run(model, feeds), truth)


def test_embeddings_with_their_norm() -> None:
    words, segments, placed = ints([1, 0, 3], [2, 2, 1]), ints([0, 0, 1], [1, 1, 0]), ints([0, 2, 1], [3, 0, 0])
    tables, gamma, beta = [floats(4, 6), floats(5, 6), floats(2, 6)], floats(6), floats(6)
    mask = ints([1, 1, 0], [1, 0, 0])
    for segment, position in itertools.product((segments, None), (placed, None)):
        total = tables[0][words] + tables[1][ints(0, 1, 2) if position is None else position]
        total = total if segment is None else total + tables[2][segment]
        centred = total - total.mean(-1, keepdims=True)
        norm = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gamma + beta
        wanted = [norm, np.array([2, 1], np.int32), total]
        operands = [words, segment, *tables[:2], None if segment is None else tables[2], gamma, beta, mask, position]
        given = [each.astype(np.int32) if each is not None and each.dtype == np.int64 else each for each in operands]
        assert_close(run(*fused("EmbedLayerNormalization", given, 3, epsilon=1e-5)), wanted)


def decoder(folder: Path) -> Path:
    """A layer as onnxruntime-genai writes it: lengths from a mask, weights of 4 bits, a cache that comes and goes."""
    rng, width = np.random.default_rng(1), HEADS * SIZE
    weights: dict[str, np.ndarray] = {}

    def product(name: str, x: str, y: str, k: int, n: int) -> Any:
        weights[f"{name}.q"] = rng.integers(0, 256, (n, k // 32, 16)).astype(np.uint8)
        weights[f"{name}.s"] = rng.random((n, k // 32)).astype(np.float32) / 50
        return helper.make_node("MatMulNBits", [x, f"{name}.q", f"{name}.s"], [y], f"/layers.0/{name}/MatMul_Q4",
                                domain=DOMAIN, K=k, N=n, bits=4, block_size=32)  # fmt: skip

    angles = np.outer(np.arange(16), 100.0 ** -np.linspace(0, 1, SIZE // 2))
    weights |= {"one": ints(1), "1": ints(1).reshape(()), "cos": np.cos(angles).astype(np.float32)}
    weights |= {"sin": np.sin(angles).astype(np.float32), "norm": np.ones(width, np.float32)}
    weights |= {"table.q": rng.integers(0, 256, (7, width // 2)).astype(np.uint8), "table.s": floats(7, width // 32)}
    cache, present = ["past.key", "past.value"], ["present.key", "present.value"]
    nodes = [
        helper.make_node("ReduceSum", ["mask", "one"], ["sum"], keepdims=0),
        helper.make_node("Sub", ["sum", "1"], ["last"]),
        helper.make_node("Cast", ["last"], ["lasts"], to=TensorProto.INT32),
        helper.make_node("Shape", ["mask"], ["shape"]),
        helper.make_node("Gather", ["shape", "1"], ["length"]),
        helper.make_node("Cast", ["length"], ["total"], to=TensorProto.INT32),
        helper.make_node("GatherBlockQuantized", ["table.q", "ids", "table.s"], ["h"], "/embed/Gather", domain=DOMAIN,
                         bits=4, block_size=32),
        helper.make_node("SimplifiedLayerNormalization", ["h", "norm"], ["a"], "/layers.0/norm", epsilon=1e-5),
        product("qkv", "a", "qkv", width, (HEADS + 2 * SHARED) * SIZE),
        helper.make_node("GroupQueryAttention", ["qkv", "", "", *cache, "lasts", "total", "cos", "sin"],
                         ["b", *present], "/layers.0/attention", domain=DOMAIN, num_heads=HEADS, kv_num_heads=SHARED,
                         do_rotary=1),
        product("out", "b", "c", width, width),
        helper.make_node("SkipSimplifiedLayerNormalization", ["h", "c", "norm"], ["d", "", "", "rest"],
                         "/layers.0/skip", domain=DOMAIN, epsilon=1e-5),
        product("head", "d", "logits", width, 7),
    ]  # fmt: skip
    inputs = [value_info(name, ["batch", size], TensorProto.INT64) for name, size in (("ids", "new"), ("mask", "all"))]
    inputs += [value_info(name, ["batch", SHARED, "before", SIZE]) for name in cache]
    model = model_of(nodes, inputs, ["logits", *present], weights)
    model.opset_import.add(domain=DOMAIN, version=1)
    return saved(model, folder)


def test_a_decoder_as_exporters_write_it_steps_through_its_cache(tmp_path: Path) -> None:
    path, ids = str(decoder(tmp_path)), torch.tensor([[3, 1, 6, 2]])
    prompt = load_program(path, sizes={"new": 4, "all": 4, "before": 4})
    assert prompt.graph.outputs == ("logits", "present_key", "present_value")
    empty = [torch.zeros(1, SHARED, 4, SIZE) for _ in range(2)]
    logits, *caches = prompt.run(ids, torch.ones(1, 4, dtype=torch.int64), *empty)
    step = load_program(path, sizes={"new": 1, "all": 4, "before": 3})
    again, *grown = step.run(ids[:, 3:], torch.ones(1, 4, dtype=torch.int64), *(each[:, :, :3] for each in caches))
    torch.testing.assert_close(again[:, 0], logits[:, 3])
    torch.testing.assert_close(grown, caches)
    kinds = [op.kind for op in step.graph.ops]
    assert kinds.count("aten.linear.default") == 3
    assert kinds.count("aten.scaled_dot_product_attention.default") == 1


def test_a_length_that_the_inputs_say_is_refused_by_name(tmp_path: Path) -> None:
    model = onnx.load(decoder(tmp_path))
    model.graph.input.append(value_info("length now", [1], TensorProto.INT32))
    next(node for node in model.graph.node if node.op_type == "GroupQueryAttention").input[6] = "length now"
    with pytest.raises(
        InputError, match=r"node '/layers.0/attention' \(com.microsoft::GroupQueryAttention\): operand 6"
    ):
        load_program(str(saved(model, tmp_path)), sizes={"new": 1, "all": 4, "before": 3})


QUERY, ONE, PAST = floats(1, 1, 8), np.array([0], np.int32), floats(1, 1, 2, 4)
WEIGHT = [bytes_(2, 1, 8), floats(2, 1)]
BLOCKS = {"K": 16, "N": 2, "block_size": 16}
REFUSED: list[tuple[str, list[Any], int, dict[str, Any], str]] = [
    ("MatMulNBits", [floats(1, 16), *WEIGHT, None, np.zeros(16, np.int32)], 1, BLOCKS, "g_idx, which is deprecated,"),
    ("MatMulNBits", [floats(1, 16), *WEIGHT], 1, BLOCKS | {"bits": 3}, "bits=3"),
    ("MatMulNBits", [floats(1, 16), *WEIGHT], 1, BLOCKS | {"weight_prepacked": 1}, "weight_prepacked other than 0"),
    ("MatMulNBits", [floats(1, 16), bytes_(2, 2, 8), WEIGHT[1]], 1, BLOCKS, r"a weight \[2, 2, 8\] of torch.uint8 for"),
    ("MatMulNBits", [floats(1, 16), *WEIGHT], 1, BLOCKS | {"block_size": 0}, r"a weight .* and block_size=0"),
    (
        "GroupQueryAttention",
        [QUERY] * 3 + [None] * 2 + [ONE, ONE + 1],
        1,
        {"num_heads": 0},
        "num_heads=0 and kv_num_he",
    ),
    ("GroupQueryAttention", [QUERY, QUERY] + [None] * 3 + [ONE, ONE + 1], 1, {}, "num_heads=2 .*keys without values"),
    ("GroupQueryAttention", [QUERY] * 3 + [None] * 2 + [ONE, ONE + 1], 1, {"sliding_window_cache": 1}, "sliding_wind"),
    ("GroupQueryAttention", [QUERY] * 3 + [None] * 2 + [ONE, ONE + 1], 1, {"qk_output": 1}, "the scores as an output"),
    (
        "GroupQueryAttention",
        [QUERY] * 3 + [None] * 2 + [ONE, ONE + 1],
        1,
        {"k_quant_type": "PER_TENSOR"},
        "a quantized",
    ),
    (
        "GroupQueryAttention",
        [QUERY] * 3 + [None] * 2 + [ints(0, 0), ONE],
        1,
        {},
        r"seqlens_k \[2\] of torch.int64",
    ),
    ("GroupQueryAttention", [QUERY] * 3 + [None] * 2 + [ints(0), ints(2)], 1, {}, r"total_sequence_length=\[2\] for 1"),
    ("GroupQueryAttention", [QUERY] * 3 + [None] * 2 + [ints(0), ints(1, 1)], 1, {}, r"total_sequence_length=\[1, 1\]"),
    (
        "GroupQueryAttention",
        [QUERY] * 3 + [PAST, None, ints(0), ints(1)],
        1,
        {},
        r"a cache of keys \[.*\] and val",
    ),
    ("GroupQueryAttention", [QUERY] * 3 + [PAST, PAST[:, :, :1], ints(0), ints(1)], 1, {}, "a cache of keys"),
    ("MultiHeadAttention", [QUERY] * 3 + [None] * 3 + [PAST, PAST, ONE], 1, {}, "a cache that is written in place"),
    ("MultiHeadAttention", [QUERY, PAST, PAST], 1, {"unidirectional": 1}, "unidirectional=1 with 2 keys for 1 steps"),
    (
        "RotaryEmbedding",
        [floats(1, 1, 8), ints(0), floats(4, 4), floats(4, 4)],
        1,
        {"scale": 2.0},
        "is_packed_batching",
    ),
]


@pytest.mark.parametrize(("kind", "operands", "n_outputs", "keys", "what"), REFUSED)
def test_what_one_pass_can_not_give_is_refused_with_a_way_out(
    kind: str, operands: list[Any], n_outputs: int, keys: dict[str, Any], what: str
) -> None:
    heads = {"num_heads": 2, "kv_num_heads": 2} if kind == "GroupQueryAttention" else {}
    heads |= {"num_heads": 1 if operands[1] is PAST else 2} if kind == "MultiHeadAttention" else {}
    with pytest.raises(
        InputError, match=rf"node 'node' \({DOMAIN}::{kind}, opset 21\): {what}.*optimum-cli export onnx"
    ):
        run(*fused(kind, operands, n_outputs, **(heads | keys)))
