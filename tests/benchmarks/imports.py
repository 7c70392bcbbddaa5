"""Which networks import: operators, flows, parameters, seconds, and whether the operators give the module's bits.

    python -m tests.benchmarks.imports [--quick] [--json FILE]

The nine ONNX files are the light models of the onnx package. The 70-billion-parameter Llama is a config: it
has no weights, and only its import is timed.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import onnx
import torch

from examples.networks import NETWORKS
from graphs.importers.from_torch import program_from_module
from graphs.importers.load import load_program
from graphs.ir import Role
from graphs.program.program import Program
from tests.benchmarks.bars import Bar, at_least, at_most, declare, report
from tests.planner.runtime.bits import differences

QUICK = ["mnist", "cifar10", "alexnet", "nin", "googlenet", "resnet50", "bert_base"]
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}


def imported(quick: bool) -> Iterator[tuple[str, Program, float]]:
    """Name, program and seconds of each."""
    for name in QUICK if quick else NETWORKS:
        module, inputs = NETWORKS[name]()
        start_s = time.perf_counter()
        yield name, program_from_module(module, inputs, name=name), time.perf_counter() - start_s
    light = Path(onnx.__file__).parent / "backend/test/data/light"
    for path in sorted(light.glob("*.onnx"))[: 3 if quick else None]:
        start_s = time.perf_counter()
        yield path.name, load_program(str(path)), time.perf_counter() - start_s


def llama_s() -> tuple[Program, float]:
    """The large config, and the seconds that it takes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(LLAMA), encoding="utf-8")
        start_s = time.perf_counter()
        return load_program(str(path)), time.perf_counter() - start_s


def line(name: str, program: Program, seconds: float, verdict: str) -> str:
    """A row of the table."""
    graph = program.graph
    n_parameters = sum(tensor.n_elements for tensor in graph.tensors if tensor.role is Role.PARAMETER)
    return f"{name:28}{len(graph.ops):10,}{len(graph.flows):8,}{n_parameters:17,}{seconds:9.2f}  {verdict}"


def main() -> int:
    """Import everything and judge the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    declare(parser)
    options = parser.parse_args()
    print(f"{'network':28}{'operators':>10}{'flows':>8}{'parameters':>17}{'seconds':>9}  bit-equal")
    equal = []
    for name, program, seconds in imported(options.quick):
        args, kwargs = program.example_arguments
        with torch.no_grad():
            equal.append(not differences(program.module(*args, **kwargs), program.run(*args, **kwargs)))
        print(line(name, program, seconds, "yes" if equal[-1] else "NO"), flush=True)
    bars: list[Bar] = [at_least("operators give the module's bits, share of networks", sum(equal) / len(equal), 1.0)]
    if not options.quick:
        program, seconds = llama_s()
        print(line("llama 70B (config)", program, seconds, "no weights"))
        bars.append(at_most("seconds to import the 70-billion-parameter config", seconds, 60.0))
    return report(bars, options.json)


if __name__ == "__main__":
    sys.exit(main())
