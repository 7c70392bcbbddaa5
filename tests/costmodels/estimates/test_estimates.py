"""Estimates from data sheets: waves, chains, casts and ranges, with the sums written out."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.cluster.catalogue import catalogue
from costmodels.cluster.cluster import Cluster, Device
from costmodels.cluster.sheet import FAMILIES, DataSheet
from costmodels.cluster.tables import device_of
from costmodels.estimates.autocast import runs_in_autocast, under_autocast
from costmodels.estimates.estimate import estimated
from costmodels.estimates.kernels import COMPUTING, KERNEL_KINDS, network_kernels
from costmodels.estimates.model import chain_seconds, kernel_seconds
from costmodels.estimates.parameters import Parameters, all_parameters, parameters_for, strangeness
from costmodels.estimates.reference import LEFT
from costmodels.measured import Measurement, Profile
from costmodels.operators.keys import op_keys
from costmodels.table import CostTable, Source
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs.common.errors import InputError
from graphs.ir import Graph, Op, Role, Tensor
from planner.plans.ranges import spreads_of
from simulator.placement import Placement

SHEET = DataSheet("Ampere", units=10, clock_hz=1e9, cache_bytes=1e6)
GPU = Device("gpu", "gpu", 1e12, {"float32": 1e12, "float16": 2e12}, 1e11, launch_s=5e-6, sheet=SHEET)
EXACT = Parameters(
    arithmetic_share=dict.fromkeys(COMPUTING, 0.5),
    memory_share=dict.fromkeys(KERNEL_KINDS, 0.5),
    backward=dict.fromkeys(KERNEL_KINDS, 2.0),
    start_s=0.0,
    fill=0.0,
    narrow=1.0,
    cache_gain=0.0,
    group_width=0.5,
    other_groups=3.0,
    padding=0.5,
    spread=0.1,
)


def network(ops: list[tuple[str, str, str]], **shapes: tuple[int, ...]) -> Graph:
    """Operators (kind, inputs, output) on float16; tensors with one letter are inputs or results, others parameters."""
    written = {output for *_, output in ops}
    tensors = tuple(
        Tensor(
            name,
            shape,
            "float16",
            Role.ACTIVATION if name in written else Role.INPUT if len(name) == 1 else Role.PARAMETER,
        )
        for name, shape in shapes.items()
    )
    made = tuple(
        Op(f"op{i}", f"aten.{kind}", tuple(inputs.split()), (output,)) for i, (kind, inputs, output) in enumerate(ops)
    )
    return Graph("network", made, tensors, ("x",), (ops[-1][2],))


def linear(rows: int, columns: int, inner: int) -> Graph:
    return network([("linear.default", "x weight", "y")], x=(rows, inner), weight=(columns, inner), y=(rows, columns))


def arithmetic_s(graph: Graph, parameters: Parameters = EXACT) -> float:
    """Seconds of a network's only operator with a memory that takes none."""
    fast = replace(GPU, memory_bytes_per_s=1e30)
    return float(kernel_seconds(network_kernels(graph, autocast=False), fast, parameters)[0])


def test_tiles_of_a_product_run_in_waves() -> None:
    # 10 tiles of 128 x 128 are a wave of 10 units; one row more: narrow tiles in a fifth wave
    tile_s = 2 * 128 * 128 * 64 / (2e12 / 10 * 0.5)
    assert arithmetic_s(linear(1280, 128, 64)) == pytest.approx(tile_s)
    assert arithmetic_s(linear(1281, 128, 64)) == pytest.approx(5 * tile_s / 4)  # 11 x 4 of 32 columns: 5 waves
    assert arithmetic_s(linear(12800, 128, 64)) == pytest.approx(10 * tile_s)


def test_few_columns_leave_a_tile_mostly_empty() -> None:
    # 24 columns take as long as the 32 of the narrowest tile; each half is slower by the parameter
    assert arithmetic_s(linear(1280, 24, 64)) == pytest.approx(arithmetic_s(linear(1280, 32, 64)))
    narrow = replace(EXACT, narrow=1.5)
    assert arithmetic_s(linear(1280, 24, 64), narrow) == pytest.approx(1.5**2 * arithmetic_s(linear(1280, 24, 64)))


def test_a_short_sum_does_not_fill_the_pipeline() -> None:
    # 8 terms take (8 + 24) / 8 = 4 times as long as they would in a pipeline that is full at once
    filling = replace(EXACT, fill=24.0)
    assert arithmetic_s(linear(1280, 128, 8), filling) == pytest.approx(4 * arithmetic_s(linear(1280, 128, 8)))


def test_what_the_last_cache_holds_streams_faster() -> None:
    relu = network_kernels(network([("relu.default", "x", "y")], x=(500, 500), y=(500, 500)), autocast=False)
    # 1 MB through a cache of 1 MB: the bandwidth grows by half of the gain
    alone = 1e6 / (1e11 * 0.5)
    assert kernel_seconds(relu, GPU, EXACT)[0] == pytest.approx(alone)
    assert kernel_seconds(relu, GPU, replace(EXACT, cache_gain=1.0))[0] == pytest.approx(alone / 1.5)


def test_a_chain_takes_the_greater_of_launches_and_kernels() -> None:
    launches = np.ones(4)
    # host:   |1|2|3|4      launched at 1, 2, 3, 4
    # device:   aaaaaabbbbcd   a is long, so all others are launched when it ends
    assert chain_seconds(np.array([6.0, 4.0, 1.0, 1.0]), launches, 1.0).tolist() == [7.0, 4.0, 1.0, 1.0]
    # short kernels wait for the host: each ends half a second after its launch
    assert chain_seconds(np.full(4, 0.5), launches, 1.0).tolist() == [1.5, 1.0, 1.0, 1.0]
    assert chain_seconds(np.zeros(0), np.zeros(0), 1.0).tolist() == []


def test_a_network_in_float16_is_taken_for_one_under_autocast() -> None:
    graph = network(
        [
            ("linear.default", "x weight", "a"),  # converts x and the weight: both are 32 bits wide
            ("add.Tensor", "a position", "b"),  # a parameter of 32 bits widens the sum
            ("exp.default", "a", "c"),  # a is converted to 32 bits first
            ("relu.default", "b", "d"),  # stays wide
        ],
        x=(4, 8), weight=(8, 8), a=(4, 8), position=(4, 8), b=(4, 8), c=(4, 8), d=(4, 8),
    )  # fmt: skip
    assert runs_in_autocast(graph)
    found = under_autocast(graph)
    assert [found.graph.tensor[name].dtype[5:] for name in "xabcd"] == ["32", "16", "32", "32", "32"]
    assert found.cast_bytes.tolist() == [6 * (32 + 64), 0, 6 * 32, 0]
    assert found.n_casts.tolist() == [2, 0, 1, 0]
    # linear moves 16 bits each; the sum 2 + 4 + 4 bytes for each of 32; exp 4 + 4; relu 4 + 4
    assert network_kernels(graph).n_bytes.tolist() == [2 * (32 + 64 + 32), 10 * 32, 8 * 32, 8 * 32]
    wide = Graph("wide", graph.ops, tuple(replace(t, dtype="float32") for t in graph.tensors), ("x",), ("d",))
    assert not runs_in_autocast(wide)


def test_kinds_of_convolutions_follow_from_their_groups() -> None:
    def kind(groups: int, side: int) -> str:
        graph = network(
            [("conv2d.default", "x weight", "y")],
            x=(1, 64, 8, 8), weight=(64, 64 // groups, side, side), y=(1, 64, 8, 8),
        )  # fmt: skip
        op = replace(graph.ops[0], attrs={"groups": groups})
        return KERNEL_KINDS[int(network_kernels(Graph("g", (op,), graph.tensors, ("x",), ("y",))).kind[0])]

    assert kind(1, 3) == "convolution"
    assert kind(8, 3) == "grouped convolution"
    assert (kind(64, 5), kind(64, 7)) == ("depthwise convolution", "large depthwise convolution")


def convolution(channels: int, columns: int, groups: int = 1, side: int = 3, images: int = 2) -> Graph:
    """A convolution over images of 16 x 16, whose ``channels`` are half of those of other images."""
    graph = network(
        [("slice.Tensor", "x", "a"), ("conv2d.default", "a weight", "y")],
        x=(images, 2 * channels, 16, 16), a=(images, channels, 16, 16),
        weight=(columns, channels // groups, side, side), y=(images, columns, 16, 16),
    )  # fmt: skip
    half, op = graph.ops
    return replace(graph, ops=(half, replace(op, attrs={"groups": groups})))


def test_a_convolution_copies_channels_that_lie_apart() -> None:
    # 2 images of 16 x 16 with 16 of 32 channels in 16 bits are read and written; those of one image lie together
    assert network_kernels(convolution(16, 16), autocast=False).cast_bytes.tolist() == [0, 2 * 2 * 16 * 256 * 2]
    assert network_kernels(convolution(16, 16, images=1), autocast=False).cast_bytes.tolist() == [0, 0]


def test_channels_that_no_tensor_core_takes_are_padded() -> None:
    def padded(graph: Graph) -> float:
        return float(network_kernels(graph, autocast=False).padded_bytes[1])

    def image(channels: int) -> int:
        return 2 * 2 * channels * 256 * 2  # read and written, 2 images, 2 bytes

    assert padded(convolution(16, 24)) == 0
    assert padded(convolution(17, 24)) == image(17)
    assert padded(convolution(17, 27)) == image(17) + image(27)
    assert padded(convolution(3, 24)) == 0  # an image that goes into the network
    odd = convolution(17, 27)
    wide = replace(odd, tensors=tuple(replace(t, dtype="float32") for t in odd.tensors))
    assert padded(wide) == 0  # no tensor core takes it
    found = network_kernels(odd, autocast=False)
    seconds = [
        kernel_seconds(replace(found, cast_bytes=np.zeros(2)), GPU, replace(EXACT, padding=share))[1]
        for share in (0.0, 0.5)
    ]
    # half of the bytes are moved, at half of the bandwidth
    assert seconds[1] - seconds[0] == pytest.approx(0.5 * (image(17) + image(27)) / (1e11 * 0.5))


def test_libraries_have_convolutions_of_their_own_for_some_groups() -> None:
    def slower(channels: int, groups: int, side: int) -> float:
        graph = convolution(channels, channels, groups, side)
        fast = replace(GPU, memory_bytes_per_s=1e30)
        seconds = [
            kernel_seconds(network_kernels(graph, autocast=False), fast, replace(EXACT, other_groups=factor))[1]
            for factor in (1.0, 3.0)
        ]
        return float(seconds[1] / seconds[0])

    assert [slower(2 * width, 2, 3) for width in (4, 8, 16, 32)] == [1.0] * 4
    assert [slower(2 * width, 2, 3) for width in (2, 24, 64, 112)] == pytest.approx([3.0] * 4)
    assert slower(16, 2, 5) == pytest.approx(3.0)  # another window
    assert slower(16, 1, 3) == 1.0  # no groups


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_parameters(family: str) -> None:
    sheet = replace(SHEET, family=family)
    for training in (False, True):
        parameters = parameters_for(sheet, training)
        assert set(parameters.arithmetic_share) == set(COMPUTING)
        assert 0.01 < parameters.spread < 0.5
        more, reason = strangeness(sheet, parameters)
        assert (more > 0) == bool(reason) == (family not in parameters.fitted_to)


def test_parameters_are_shares_of_peaks() -> None:
    for parameters in all_parameters().values():
        assert all(0 < share < 1.6 for share in parameters.arithmetic_share.values())
        assert all(0.05 < share < 2.0 for share in parameters.memory_share.values())
        assert 0 < parameters.start_s < 1e-4


@pytest.mark.parametrize("name", catalogue("device"))
def test_every_device_of_the_catalogue_is_estimated(name: str) -> None:
    device = device_of({"name": "one", "like": name})
    graph = linear(4096, 4096, 4096)
    found = estimated(network_kernels(graph), device)
    assert 0.1e-6 < found.forward_s[0] < 5
    with pytest.raises(InputError, match="device 'one' has no data sheet; give it family, units, clock and cache"):
        estimated(network_kernels(graph), replace(device, sheet=None))


def table_of(graph: Graph, sheet: DataSheet | None) -> CostTable:
    device = replace(GPU, sheet=sheet)
    return tabulate(graph, Cluster("one", (device,)), Workload(), {})


def test_a_table_says_what_its_times_rest_on() -> None:
    graph = linear(1280, 128, 64)
    assert table_of(graph, SHEET).source.tolist() == [[Source.ESTIMATED]]
    assert table_of(graph, None).source.tolist() == [[Source.ROOFLINE]]
    training = tabulate(graph, Cluster("one", (GPU,)), Workload("training"), {})
    assert training.backward_s[0, 0] > training.forward_s[0, 0]


def test_ranges_are_wider_for_what_no_fit_saw() -> None:
    graph, where = linear(1280, 128, 64), Placement((0,))
    parameters = parameters_for(SHEET)

    def width(graph: Graph, sheet: DataSheet) -> float:
        return spreads_of(graph, table_of(graph, sheet), where, {})[False].total

    known = width(graph, SHEET)
    assert known == pytest.approx(np.hypot(parameters.spread, 0.01))  # of the fit, and of one device's model
    assert known < width(graph, replace(SHEET, family="Hopper")) < width(graph, replace(SHEET, family="CDNA3"))
    unknown = network(
        [("linear.default", "x weight", "a"), ("own.default", "a", "y")],
        x=(128, 8), weight=(8, 8), a=(128, 8), y=(128, 8),
    )  # fmt: skip
    both = spreads_of(unknown, table_of(unknown, SHEET), Placement((0, 0)), {})[False].total
    assert both > 1.2 * known  # half of the time has no formula


def test_what_a_network_took_on_one_gpu_corrects_the_estimate_for_another() -> None:
    graph = network(
        [("linear.default", "x weight", "a"), ("relu.default", "a", "y")],
        x=(4096, 512), weight=(512, 512), a=(4096, 512), y=(4096, 512),
    )  # fmt: skip
    here, there = replace(GPU, name="here", profile="abc"), replace(GPU, name="there", memory_bytes_per_s=2e11)
    cluster = Cluster("two", (here, there))
    alone = tabulate(graph, cluster, Workload(), {})
    first, second = alone.forward_s[:, 0].tolist()
    seconds = (1.5 * first, 0.8 * second)  # measured: the product takes 1.5 times as long as estimated, relu 0.8 times
    ops = {key: Measurement(value, 0.0, 9) for key, value in zip(op_keys(graph), seconds, strict=True)}
    table = tabulate(graph, cluster, Workload(), {"abc": Profile("abc", {}, ops)})
    assert table.source.tolist() == [[Source.MEASURED, Source.ESTIMATED]] * 2
    assert table.forward_s[:, 1] / alone.forward_s[:, 1] == pytest.approx([1.5, 0.8])
    assert table.spread[0, 1] == pytest.approx(LEFT * alone.spread[0, 1])
    processor = replace(there, sheet=replace(SHEET, family="AVX2"))  # a GPU says nothing of a processor
    pair = Cluster("two", (here, processor))
    both = [tabulate(graph, pair, Workload(), profiles) for profiles in ({}, {"abc": Profile("abc", {}, ops)})]
    assert both[0].forward_s[:, 1].tolist() == both[1].forward_s[:, 1].tolist()
