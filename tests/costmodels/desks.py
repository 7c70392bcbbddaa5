"""A cluster as it stands in a file, its parts, and clusters drawn by chance."""

from math import inf

from hypothesis import strategies as st

from costmodels.cluster.cluster import Cluster, Device, Link
from graphs.ir import ITEM_BYTES

DESK = """\
version = 1

[[device]]
name = "cpu0"
kind = "cpu"
memory = "12 GiB"
flops = { float32 = "120 GFLOP/s", bfloat16 = "1 TFLOP/s" }
memory_bandwidth = "20 GB/s"
launch = "2 us"
cores = [0]
profile = "abc123"

[[device]]
name = "gpu"
memory = "8 GB"
flops = { float32 = "10 TFLOP/s" }
memory_bandwidth = "500 GB/s"
cuda = 0

[[link]]
between = ["cpu0", "gpu"]
bandwidth = "100 Gb/s"
latency = "10 us"
channel = "pcie"
"""

CPU0 = Device(
    "cpu0",
    "cpu",
    12 * 2.0**30,
    {"float32": 1.2e11, "bfloat16": 1e12},
    2e10,
    launch_s=2e-6,
    cores=(0,),
    profile="abc123",
)
GPU = Device("gpu", "gpu", 8e9, {"float32": 1e13}, 5e11, cuda=0)
UP = Link("cpu0", "gpu", 12.5e9, 1e-5, "pcie")
DOWN = Link("gpu", "cpu0", 12.5e9, 1e-5, "pcie")

TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
POSITIVE = st.floats(min_value=1e-300, max_value=1e300)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    names = draw(st.lists(TEXTS.filter(bool), min_size=1, max_size=4, unique=True))
    devices = tuple(
        Device(
            name,
            draw(TEXTS),
            draw(POSITIVE),
            draw(st.dictionaries(st.sampled_from(list(ITEM_BYTES)), POSITIVE, min_size=1, max_size=2)),
            draw(POSITIVE),
            draw(st.just(0.0) | POSITIVE),
            request_s=draw(st.just(0.0) | POSITIVE),
            profile=draw(TEXTS),
            cores=(0, 3) if draw(st.booleans()) else (),
            host=name,
        )
        for name in names
    )
    rate = st.sampled_from((1e9, inf)) | POSITIVE
    links = tuple(
        Link(
            *(a, b, draw(rate), draw(st.sampled_from((0.0, 1e-5))), draw(st.sampled_from(("", "bus")))),
            points=draw(st.sampled_from(((), ((0.0, 1e-5), (1e6, 0.125))))),
            via=draw(st.sampled_from(("", "gloo"))),
        )
        for a in names
        for b in names
        if a != b and draw(st.booleans())
    )
    return Cluster(draw(TEXTS), devices, links, draw(st.booleans()))
