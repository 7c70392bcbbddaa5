"""Small HTML tables and pictures for notebooks; their styles do not affect the rest of the page."""

from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from html import escape

from graphs.ir import Graph, Role, Tensor
from graphs.visible import visible

MOST = 8  # kinds of operators and modules that are named


def html_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An HTML table with escaped texts."""
    head = f"<thead><tr>{''.join(f'<th>{_text(text)}</th>' for text in heads)}</tr></thead>" if heads else ""
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><caption>{_text(title)}</caption>{head}<tbody>{body}</tbody></table>"


def html_picture(svg: str, title: str) -> str:
    """An SVG as an inline image, so that its styles do not affect the page."""
    data = b64encode(svg.encode()).decode()
    return f'<img alt="{_text(title)}" style="max-width: 100%" src="data:image/svg+xml;base64,{data}">'


def graph_html(graph: Graph) -> str:
    """A summary of a graph."""
    parameters = [tensor for tensor in graph.tensors if tensor.role is Role.PARAMETER]
    n_elements, n_bytes = (sum(getattr(t, name) for t in parameters) for name in ("n_elements", "n_bytes"))
    rows = [
        ("inputs", _ends(graph, graph.inputs)),
        ("outputs", _ends(graph, graph.outputs)),
        ("parameters", f"{n_elements:,} in {len(parameters):,} tensors, {n_bytes / 2**20:,.1f} MiB"),
        ("kinds", _most(Counter(op.kind for op in graph.ops))),
        ("modules", _most(Counter(op.module.split(".")[0] for op in graph.ops if op.module))),
        ("fingerprint", graph.fingerprint),
    ]
    return html_table(f"{graph.name}: {len(graph.ops):,} operators, {len(graph.flows):,} flows", (), rows)


def _text(text: str) -> str:
    """A text, escaped for HTML."""
    return escape(visible(text))


def _ends(graph: Graph, names: Sequence[str]) -> str:
    tensors: list[Tensor] = [graph.tensor[name] for name in names]
    return ", ".join(f"{t.name} {list(t.shape)} {t.dtype}" for t in tensors) or "none"


def _most(counts: Counter[str]) -> str:
    """The most frequent names with their counts, and how many other names there are."""
    named = [f"{name} {count:,}" for name, count in counts.most_common(MOST)]
    left = len(counts) - len(named)
    return ", ".join([*named, *([f"{left:,} more"] if left else [])]) or "none"
