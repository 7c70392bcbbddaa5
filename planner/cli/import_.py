"""Import a model as a computation graph.

planner import examples.networks:googlenet -o graph.json
planner import model.onnx --batch 8
"""

import argparse

from costmodels.units import format_bytes
from graphs.files import graph_to_dict, write_graph
from graphs.ir import Role
from planner.cli.console import Console
from planner.cli.files import declare_output
from planner.cli.models import declare_model


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``planner import``."""
    declare_model(parser)
    parser.add_argument("--training", action="store_true", help="in training mode: dropout, updates of batch norms")
    declare_output(parser, "graph.json")


def run(options: argparse.Namespace, console: Console) -> int:
    """Import the model, write graph.json, print its figures."""
    from graphs.importers.load import load_graph

    console.on_step(f"importing {options.model}", 0, 0)
    graph = load_graph(options.model, options.batch, options.training, dict(options.sizes))
    write_graph(graph, options.output)
    parameters = [tensor for tensor in graph.tensors if tensor.role is Role.PARAMETER]
    figures = {
        "n_ops": len(graph.ops),
        "n_kinds": len({op.kind for op in graph.ops}),
        "n_flows": len(graph.flows),
        "n_parameters": sum(tensor.n_elements for tensor in parameters),
        "parameter_bytes": sum(tensor.n_bytes for tensor in parameters),
    }
    inputs, outputs = (
        ", ".join(f"{name} {list(graph.tensor[name].shape)}" for name in names)
        for names in (graph.inputs, graph.outputs)
    )
    rows = [
        ("operators", f"{figures['n_ops']:,} of {figures['n_kinds']} kinds"),
        ("flows", f"{figures['n_flows']:,}"),
        ("parameters", f"{figures['n_parameters']:,} ({format_bytes(figures['parameter_bytes'])})"),
        ("inputs", inputs),
        ("outputs", outputs),
        ("fingerprint", graph.fingerprint),
    ]
    document = {**figures, "output": str(options.output), "operators": graph_to_dict(graph)["ops"]}
    console.show(document, f"{graph.name} → {options.output}", ("", ""), rows)
    return 0
