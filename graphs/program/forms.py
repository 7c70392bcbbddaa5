"""Forms: the structure of the tensors that a model takes and returns, as text and back.

A form may name classes of the model's code. torch knows the classes whose modules have been imported; no module is
imported because a file names it.
"""

from typing import Any

from torch.utils import _pytree as pytree

from graphs.documents import parse_json
from graphs.errors import InputError, first_line

FACTORIES = frozenset({"list", "dict", "set", "tuple", "int", "float", "str", "bool"})
"""The builtins that a defaultdict in a file may have as its factory."""


def form_to_text(spec: pytree.TreeSpec) -> str:
    """The text that `form_from_text` reads.

    Raises:
        InputError: if the form has a class that was registered without a serialized name.
    """
    try:
        return pytree.treespec_dumps(spec)
    except (NotImplementedError, TypeError) as error:
        raise InputError(
            f"the form of what the model takes or returns cannot be written to a file ({first_line(error)}); "
            "use tuples, lists and dictionaries, or register its class with serialized_type_name='its.module.Class'"
        ) from error


def form_from_text(text: str) -> pytree.TreeSpec:
    """The inverse of `form_to_text`.

    Raises:
        InputError: if it holds a class that is not known here, or something that would have to be imported.
        ValueError, KeyError, TypeError: if it is damaged, or nested too deeply.
    """
    _, root = parse_json(text)
    left = [root]
    while left:
        node = left.pop()
        _check_node(node["type"], node["context"])
        left += node["children_spec"]
    return pytree.treespec_loads(text)


def modules_of(spec: pytree.TreeSpec) -> set[str]:
    """The modules of a form's classes, which a process has to import before it can read the form."""
    modules = {spec.type.__module__} if spec.type is not None else set()
    return modules.union(*map(modules_of, spec.children())) - {"builtins", "collections", "__main__"}


def _check_node(name: Any, context: Any) -> None:
    if name is not None and name not in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
        module = str(name).rpartition(".")[0] or name
        raise InputError(
            f"the model takes or returns a '{name}', which is not known here; import its module first "
            f"(import {module}, or --import {module} for python -m planner.runtime)"
        )
    if name == "collections.defaultdict":
        factory = (context["default_factory_module"], context["default_factory_name"])
        if factory[0] != "builtins" or factory[1] not in FACTORIES:
            raise InputError(
                f"the model takes or returns a defaultdict of '{'.'.join(map(str, factory))}'; a file may hold those "
                f"of {', '.join(sorted(FACTORIES))}"
            )
    if isinstance(context, str):
        _check_no_enumeration(parse_json(context))


def _check_no_enumeration(context: Any) -> None:
    """Refuse members of enumerations, whose modules torch would import."""
    if isinstance(context, dict) and "__enum__" in context:
        raise InputError(
            "the model takes or returns a dictionary with members of an enumeration as keys, which a file cannot hold; "
            "use text or numbers"
        )
    for item in context.values() if isinstance(context, dict) else context if isinstance(context, list) else ():
        _check_no_enumeration(item)
