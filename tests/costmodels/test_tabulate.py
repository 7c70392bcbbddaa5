"""Graph, cluster and profiles into arrays."""

from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest

from costmodels.cluster.cluster import Cluster, Device, Link
from costmodels.learning.learned import LearnedModel, Predictions
from costmodels.measured import Measurement, Profile, TrainingMeasurement
from costmodels.operator_times import OperatorTimes
from costmodels.operators.keys import op_keys, training_keys
from costmodels.table import QUARTILES, Source
from costmodels.tabulate import assemble, guessed_kinds, tabulate
from costmodels.workload import Workload
from graphs.common.errors import InputError
from graphs.ir import Graph, Role
from graphs.kernels.choice import Kernels
from tests.costmodels.sketches import sketch

GRAPH = sketch(
    {"x": (4, 5), "w": (5, 5), "a": (4, 5), "c": (4, 5), "d": (4, 5)},
    [
        ("aten.linear.default", "x w", "a"),
        ("aten.relu.default", "a", "c"),
        ("aten.add.Tensor", "a c", "d"),
    ],
    "d",
)
SLOW = Device("slow", "slow", 1e6, {"float32": 100.0}, 1e3, launch_s=0.25)
FAST = Device("fast", "fast", 2e6, {"float32": 1000.0}, 1e4, launch_s=0.125, profile="abc")
CLUSTER = Cluster("two", (SLOW, FAST), (Link("slow", "fast", 1e3, 0.5), Link("fast", "slow", inf)), overlap=False)


def test_every_number_by_hand() -> None:
    table = tabulate(GRAPH, CLUSTER, Workload(in_flight=2), {})
    assert (table.ops, table.devices) == (("op0", "op1", "op2"), ("slow", "fast"))
    # linear: 2*4*5*5 = 200 FLOP, 4*(20+25+20) = 260 B; relu: 20 FLOP, 160 B; add: 20 FLOP, 240 B
    assert table.forward_s.tolist() == [
        [200 / 100 + 0.25, 200 / 1000 + 0.125],
        [20 / 100 + 0.25, 20 / 1000 + 0.125],
        [240 / 1000 + 0.25, 240 / 10000 + 0.125],
    ]
    assert np.all(table.source == Source.ROOFLINE)
    assert table.op_bytes.tolist() == [100, 0, 0]
    assert table.working_bytes == 2 * 4 * 80  # x, a, c and d
    assert [(flow.tensor, flow.writer, flow.readers) for flow in table.flows] == [("a", 0, (1, 2)), ("c", 1, (2,))]
    assert table.flow_bytes.tolist() == [80, 80]
    assert table.transfer_s.tolist() == [[[0, 0.5 + 80 * 0.001], [0, 0]]] * 2
    assert table.capacity_bytes.tolist() == [1e6, 2e6]
    assert (table.overlap, table.together) == (False, ())


def test_measurements_come_before_the_roofline_where_there_are_some() -> None:
    relu = op_keys(GRAPH)[1]
    profiles = {
        "abc": Profile("abc", {}, {relu: Measurement(0.7, 0, 9), "other": Measurement(9, 0, 9)}),
        "def": Profile("def", {}, {relu: Measurement(8, 0, 9)}),  # of a machine that is not here
    }
    table = tabulate(GRAPH, CLUSTER, Workload(), profiles)
    assert table.forward_s[1].tolist() == [20 / 100 + 0.25, 0.7]
    assert table.forward_s[0, 1] == 200 / 1000 + 0.125
    assert table.source.tolist() == [
        ["roofline", "roofline"],
        ["roofline", "measured"],
        ["roofline", "roofline"],
    ]
    assert table.share(Source.MEASURED) == pytest.approx(0.7 / table.forward_s.sum())


class OfRelu(LearnedModel):
    """Knows that a relu takes 0.6 s, with a standard error of a tenth, and the way back 1.5 s."""

    def predict(self, graph: Graph, training: bool = False) -> Predictions:
        known = np.array([0.6 if "relu" in op.kind else nan for op in graph.ops])
        return Predictions(known, known * 2.5 * training, known / 6, (), ())


def test_what_was_not_measured_is_learned_or_else_by_the_roofline() -> None:
    linear, *others = op_keys(GRAPH)
    some = {linear: Measurement(0.7, 0.5, 9)}
    asked: list[str] = []

    def learned(fingerprint: str) -> LearnedModel:
        asked.append(fingerprint)
        return OfRelu("abc", {}, None, nan)

    table = tabulate(GRAPH, CLUSTER, Workload(), {"abc": Profile("abc", {}, some)}, learned)
    assert table.source[:, 1].tolist() == ["measured", "learned", "roofline"]
    assert table.forward_s[:2, 1].tolist() == [0.7, 0.6]
    assert table.spread[:2, 1].tolist() == [0.5, pytest.approx(0.1 * QUARTILES)]
    assert asked == ["abc"]  # never of a device without a fingerprint
    whole = some | dict.fromkeys(others, Measurement(0.1, 0, 9))
    assert tabulate(GRAPH, CLUSTER, Workload(), {"abc": Profile("abc", {}, whole)}, learned).share(Source.LEARNED) == 0
    assert asked == ["abc"]  # nothing lacks


def test_in_training_both_passes_are_learned() -> None:
    table = tabulate(GRAPH, CLUSTER, Workload("training"), {}, lambda _: OfRelu("abc", {}, None, nan))
    assert table.source[:, 1].tolist() == ["roofline", "learned", "roofline"]
    assert (table.forward_s[1, 1], table.backward_s[1, 1]) == (0.6, 1.5)
    inference = tabulate(GRAPH, CLUSTER, Workload(), {}, lambda _: OfRelu("abc", {}, None, nan))
    assert inference.forward_s[1, 1] == 0.6
    assert not inference.backward_s.any()


def test_devices_of_one_kind_are_slowed_down_by_each_other() -> None:
    linear, relu, _ = op_keys(GRAPH)
    isolated = {linear: Measurement(2.0, 0.5, 9), relu: Measurement(1.0, 0, 9)}
    profiles = {"abc": Profile("abc", {}, isolated, {}, {2: {linear: Measurement(3.0, 0.1, 9)}})}
    one, other = (replace(device, profile="abc") for device in CLUSTER.devices)
    table = tabulate(GRAPH, replace(CLUSTER, devices=(one, other)), Workload(), profiles)
    assert table.forward_s[0].tolist() == [2, 2]
    assert table.slowdown[0].tolist() == [0.5, 0.5]
    assert table.contention_group.tolist() == [0, 0]
    assert table.contended.forward_s[0].tolist() == [3, 3]
    assert table.spread[0].tolist() == [0.5, 0.5]
    # the other device is of another kind, so nobody is beside the second one
    table = tabulate(GRAPH, replace(CLUSTER, devices=(CLUSTER.devices[0], other)), Workload(), profiles)
    assert table.forward_s[:2, 1].tolist() == [2, 1]
    assert not table.slowdown.any()
    assert table.contention_group.tolist() == [0, 1]


def test_what_was_not_measured_in_company_is_slowed_down_like_the_rest() -> None:
    linear, relu, _ = op_keys(GRAPH)
    isolated = {linear: Measurement(2.0, 0.5, 9), relu: Measurement(1.0, 0, 9)}
    profiles = {"abc": Profile("abc", {}, isolated, {}, {2: {linear: Measurement(3.0, 0.1, 9)}})}
    twins = replace(CLUSTER, devices=(FAST, replace(FAST, name="twin")), links=())
    table = tabulate(GRAPH, twins, Workload(), profiles)
    by_roofline_s = 240 / 10000 + 0.125
    assert table.slowdown.tolist() == [[0.5, 0.5]] * 3
    assert table.forward_s[:, 0].tolist() == pytest.approx([2, 1, by_roofline_s])
    assert table.contended.forward_s[:, 0].tolist() == pytest.approx([3, 1.5, 1.5 * by_roofline_s])
    assert table.source[:, 0].tolist() == ["measured", "measured", "roofline"]
    training = tabulate(GRAPH, twins, Workload(mode="training"), profiles)
    assert not training.slowdown.any()  # contention was not measured in training


@pytest.mark.parametrize(
    ("kernels", "in_flight", "expected"),
    [
        ("quick", 4, [-0.4, 0.0, 0.25]),  # 5 % less is chance
        ("quick", 3, [0.5, 0.5, 0.5]),  # one after the other
        ("exact", 4, [0.0, 0.0, 0.25]),
    ],
)
def test_two_micro_batches_at_once_take_less_time(kernels: Kernels, in_flight: int, expected: list[float]) -> None:
    linear, relu, last = op_keys(GRAPH)
    isolated = {key: Measurement(2.0, 0, 9) for key in (linear, relu, last)}
    contended = {2: {key: Measurement(3.0, 0, 9) for key in isolated}}
    copies = {2: {linear: Measurement(1.2, 0, 9), relu: Measurement(1.9, 0, 9), last: Measurement(2.5, 0, 9)}}
    profiles = {"abc": Profile("abc", {}, isolated, {}, contended, copies=copies)}
    one = replace(FAST, kernels=kernels)
    twins = replace(CLUSTER, devices=(one, replace(one, name="twin")), links=())
    table = tabulate(GRAPH, twins, Workload(in_flight=in_flight), profiles)
    assert table.copies_slowdown.T.tolist() == [pytest.approx(expected)] * 2
    assert table.slowdown.tolist() == [[0.5, 0.5]] * 3
    assert table.gains_by_pairs.tolist() == [min(expected) < 0] * 2


def test_an_operator_that_took_no_time_in_copies_still_takes_a_quarter_of_its_own() -> None:
    (linear, *_), twins = op_keys(GRAPH), (replace(FAST, kernels="quick"), replace(FAST, kernels="quick", name="twin"))
    copies = {2: {linear: Measurement(0.0, 0, 9)}}
    profiles = {"abc": Profile("abc", {}, {linear: Measurement(2.0, 0, 9)}, copies=copies)}
    table = tabulate(GRAPH, replace(CLUSTER, devices=twins, links=()), Workload(), profiles)
    assert table.copies_slowdown[0].tolist() == [-0.75, -0.75]


def test_in_training_company_slows_down_both_passes() -> None:
    linear, *_ = training_keys(GRAPH)
    isolated = {linear: TrainingMeasurement(Measurement(2.0, 0, 9), Measurement(4.0, 0, 9))}
    contended = {2: {linear: TrainingMeasurement(Measurement(4.0, 0, 9), Measurement(5.0, 0, 9))}}  # 9 s and not 6
    profiles = {"abc": Profile("abc", {}, {}, isolated, {}, contended)}
    twins = replace(CLUSTER, devices=(FAST, replace(FAST, name="twin")), links=())
    table = tabulate(GRAPH, twins, Workload("training"), profiles)
    assert table.slowdown.tolist() == [[0.5, 0.5]] * 3
    assert (table.forward_s[0, 0], table.backward_s[0, 0]) == (2.0, 4.0)
    assert (table.contended.forward_s[0, 0], table.contended.backward_s[0, 0]) == (3.0, 6.0)
    by_roofline_s = 20 / 1000 + 0.125
    assert table.forward_s[1, 0] == table.backward_s[1, 0] == pytest.approx(by_roofline_s)
    assert not tabulate(GRAPH, twins, Workload(), profiles).slowdown.any()  # nor the other way round


def test_a_table_can_be_put_together_from_times_that_are_known() -> None:
    given = OperatorTimes(np.full((3, 2), 7.0), np.full((3, 2), str(Source.GIVEN)))
    table = assemble(GRAPH, CLUSTER, Workload(), given)
    assert np.all(table.forward_s == 7)
    assert table.share(Source.GIVEN) == 1
    by_roofline = tabulate(GRAPH, CLUSTER, Workload(), {})
    same = ("op_bytes", "flow_bytes", "link_class", "link_s", "channel", "capacity_bytes")
    assert all(np.array_equal(getattr(table, name), getattr(by_roofline, name)) for name in same)


def test_devices_with_the_same_peaks_but_another_profile_differ() -> None:
    twin = replace(FAST, name="twin", profile="")
    relu = op_keys(GRAPH)[1]
    profiles = {"abc": Profile("abc", {}, {relu: Measurement(0.7, 0, 9)})}
    table = tabulate(GRAPH, Cluster("twins", (FAST, twin, replace(FAST, name="third"))), Workload(), profiles)
    assert table.forward_s[1].tolist() == [0.7, 20 / 1000 + 0.125, 0.7]


def test_without_a_link_a_message_takes_forever() -> None:
    table = tabulate(GRAPH, replace(CLUSTER, links=CLUSTER.links[:1]), Workload(), {})
    assert table.link_class.tolist() == [[-1, 0], [-1, -1]]
    assert table.channel.tolist() == [[-1, 0], [-1, -1]]
    assert table.transfer_s[0].tolist() == [[0, 0.5 + 80 * 0.001], [inf, 0]]


def test_links_have_channels_of_their_own_unless_they_name_one() -> None:
    devices = tuple(replace(SLOW, name=name) for name in "abcd")
    names = {("a", "b"): "", ("b", "a"): "", ("a", "c"): "bus", ("c", "a"): "bus", ("b", "d"): "bus", ("d", "b"): "x"}
    links = tuple(Link(src, dst, 1e9, channel=channel) for (src, dst), channel in names.items())
    channel = tabulate(GRAPH, Cluster("four", devices, links), Workload(), {}).channel
    numbers = {pair: int(channel["abcd".index(pair[0]), "abcd".index(pair[1])]) for pair in names}
    assert numbers == {("a", "b"): 0, ("a", "c"): 1, ("b", "a"): 2, ("b", "d"): 1, ("c", "a"): 1, ("d", "b"): 3}
    assert (channel == -1).sum() == 16 - len(names)


def test_operators_at_both_ends_take_the_time_of_a_request() -> None:
    lines = [("neg", "x", "a"), ("mul", "a xx", "e"), ("neg", "e", "c"), ("mul", "x c", "d")]
    shapes = dict.fromkeys(("x", "xx", *"acde"), (2,))
    graph = sketch(shapes, [(f"aten.{kind}.default", reads, write) for kind, reads, write in lines], "e d")
    asked = Cluster("asked", (SLOW, replace(FAST, request_s=0.4)))
    without, found = (tabulate(graph, cluster, Workload(), {}) for cluster in (CLUSTER, asked))
    extra = found.forward_s - without.forward_s
    assert extra[:, 0].tolist() == [0] * 4
    assert extra[:, 1] == pytest.approx(
        [0.1, 0.1 + 0.1, 0, 0.1]
    )  # a is the first that reads x, b both reads and writes
    trained, as_before = (tabulate(graph, each, Workload("training"), {}) for each in (asked, CLUSTER))
    assert trained.forward_s.tolist() == as_before.forward_s.tolist()


def test_a_graph_without_flows() -> None:
    table = tabulate(sketch({"x": (2,), "a": (2,)}, [("aten.neg.default", "x", "a")], "a"), CLUSTER, Workload(), {})
    assert table.flow_bytes.shape == (0,)


def test_a_graph_without_operators() -> None:
    graph = sketch({"x": (2,)}, [], "x")
    assert tabulate(graph, CLUSTER, Workload(), {}).forward_s.shape == (0, 2)
    with pytest.raises(InputError, match=r"^network 'sketch' has no operators, so there is nothing to train$"):
        tabulate(graph, CLUSTER, Workload("training"), {})


def test_operators_that_share_a_parameter_are_together() -> None:
    graph = sketch(
        {"x": (5,), "w": (5,), "a": (5,), "c": (5,)},
        [("aten.mul.Tensor", "x w", "a"), ("aten.mul.Tensor", "a w", "c")],
    )
    assert tabulate(graph, CLUSTER, Workload(), {}).together == ((0, 1),)


def test_guesses_can_be_asked_for() -> None:
    graph = sketch({"x": (2,), "a": (2,)}, [("my.op.default", "x", "a")])
    assert guessed_kinds(graph) == ("my.op.default",)
    assert guessed_kinds(GRAPH) == ()


def test_many_operators_on_many_devices() -> None:
    n_ops, n_devices = 5000, 64
    shapes = {"x": (8,)} | {f"a{i}": (8,) for i in range(n_ops)}
    lines = [("aten.relu.default", f"a{i - 1}" if i else "x", f"a{i}") for i in range(n_ops)]
    devices = tuple(replace(SLOW, name=f"d{i}", launch_s=float(i % 4)) for i in range(n_devices))
    links = tuple(Link(a.name, b.name, 1e9) for a in devices for b in devices if a is not b)
    table = tabulate(sketch(shapes, lines), Cluster("many", devices, links), Workload(), {})
    assert table.forward_s.shape == (n_ops, n_devices)
    assert table.forward_s[:, 5].tolist() == pytest.approx([8 / 100 + 1] * n_ops)
    assert table.channel.max() == n_devices * (n_devices - 1) - 1


HALF = Device("half", "half", 1e6, {"bfloat16": 100.0, "int8": 200.0}, 1e3)


@pytest.mark.attack("first-try")
def test_a_device_of_16_bits_is_not_planned_with_for_parameters_of_32() -> None:
    weights = tuple(replace(t, role=Role.PARAMETER) if t.name == "w" else t for t in GRAPH.tensors)
    single = replace(GRAPH, tensors=weights, name="net")
    half = replace(single, tensors=tuple(replace(t, dtype="bfloat16") for t in weights))
    mixed = Cluster("mixed", (SLOW, HALF))
    with pytest.raises(InputError) as error:
        tabulate(single, mixed, Workload(), {})
    assert str(error.value) == (
        "device 'half' computes in bfloat16, and parameter 'w' of 'net' is float32; convert the model, such as "
        "model.to(torch.bfloat16), or give the device flops.float32"
    )
    assert tabulate(half, mixed, Workload(), {}).forward_s[0, 1] > 0
