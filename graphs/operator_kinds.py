"""Kinds of PyTorch's operators, and what they say of an operator."""

from graphs.ir import Op


def aten_kind(name: str) -> str:
    """Return the kind of PyTorch's operator of a name; one with a dot is a kind already."""
    return name if "." in name else f"aten.{name}"


def aten_kinds(names: str) -> frozenset[str]:
    """Return the kinds of PyTorch's operators with these names, between spaces."""
    return frozenset(map(aten_kind, names.split()))


def plain(kind: str) -> str:
    """Return a kind without its overload; the view of memory as another dtype gives no new shape, and keeps it."""
    return kind if kind == "aten.view.dtype" else ".".join(kind.split(".")[:2])


RANDOM = ("rand", "bernoulli", "multinomial", "normal", "uniform", "exponential", "_functional")


def changes(op: Op) -> bool:
    """Return whether an operator draws random numbers, or updates statistics when it runs."""
    if any(op.attrs.get(name) is True for name in ("train", "training")):
        return True
    chance = op.attrs.get("dropout_p", 0)
    name = plain(op.kind).removeprefix("aten.")
    return (isinstance(chance, int | float) and chance > 0) or name.startswith(RANDOM)
