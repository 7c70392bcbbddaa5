"""Random graphs for the laws: every kind of tensor, of attribute and of name."""

from dataclasses import replace
from itertools import count

from hypothesis import strategies as st

from graphs.ir import ITEM_BYTES, Attr, Graph, Op, Role, Tensor

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
SHAPES = st.lists(st.integers(0, 9), max_size=4).map(tuple)
DTYPES = st.sampled_from(sorted(ITEM_BYTES))


def _tuples(values: st.SearchStrategy[Attr]) -> st.SearchStrategy[Attr]:
    return st.lists(values, max_size=3).map(tuple)


ATTRS: st.SearchStrategy[Attr] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | NAMES,
    _tuples,
    max_leaves=4,
)


@st.composite
def graphs(draw: st.DrawFn, max_ops: int = 5) -> Graph:
    """Some inputs, parameters and buffers, and operators that each read some of what is there and write 1 or 2."""
    letter = draw(st.characters(codec="utf-8"))
    names = (f"{letter}{number}" for number in count())

    def tensor(role: Role) -> Tensor:
        return Tensor(next(names), draw(SHAPES), draw(DTYPES), role)

    tensors = [tensor(Role.INPUT)]
    tensors += [tensor(draw(st.sampled_from([Role.INPUT, Role.PARAMETER, Role.BUFFER]))) for _ in range(3)]
    ops: list[Op] = []
    for _ in range(draw(st.integers(1, max_ops))):
        reads = draw(st.lists(st.sampled_from([t.name for t in tensors]), max_size=4))
        written = [tensor(Role.ACTIVATION) for _ in range(draw(st.integers(1, 2)))]
        tensors += written
        op = Op(
            name=next(names),
            kind=draw(NAMES),
            inputs=tuple(reads),
            outputs=tuple(t.name for t in written),
            module=draw(st.just("") | NAMES),
            attrs=draw(st.dictionaries(NAMES, ATTRS, max_size=3)),
        )
        ops.append(draw(st.sampled_from([op, replace(op, members=(op,))])))
    outputs = draw(st.lists(st.sampled_from([t.name for t in tensors]), max_size=3))
    inputs = [t.name for t in tensors if t.role is Role.INPUT]
    return Graph(draw(NAMES), tuple(ops), tuple(tensors), tuple(inputs), tuple(outputs))
