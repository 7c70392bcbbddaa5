"""Parameters of public language models of many families against transformers' networks and published totals.

    python -m tests.benchmarks.language_model_parameters [--quick] [--json FILE]

Then processor time and memory of reading a model of 120 layers in a fresh process. ``--quick`` takes every third model.
"""

import argparse
import resource
import subprocess
import sys

from costmodels.language_model.from_config import model_of_config
from graphs.importers.from_config import headed_module
from tests.benchmarks.bars import Bar, at_least, at_most, declare, report
from tests.language_models import MODELS, PARAMETERS

FEWEST_MODELS, FEWEST_FAMILIES, MOST_SECONDS, MOST_MIB = 40, 25, 5.0, 1024
LARGE = {
    "model_type": "llama",
    "hidden_size": 8192,
    "num_hidden_layers": 120,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 128256,
}


def main() -> int:
    """Compare, measure, print and judge."""
    parser = argparse.ArgumentParser(description="parameters of public language models")
    declare(parser)
    arguments = parser.parse_args()
    names = list(MODELS)[:: 3 if arguments.quick else 1]
    equal, families = 0, set()
    for name in names:
        model = model_of_config(MODELS[name], name)
        have = sum(weight.numel() for weight in headed_module(MODELS[name]).parameters())
        same = model.parameters == have == PARAMETERS.get(name, have)
        equal += same
        families |= {MODELS[name]["model_type"]} if same else set()
        print(
            f"{name:20} {model.parameters:17,} active {model.active_parameters:15,} {'' if same else f'not {have:,}'}"
        )
    share = len(names) / len(MODELS)
    bars: list[Bar] = [
        at_most("models whose parameters differ", len(names) - equal, 0),
        at_least("models compared", equal, FEWEST_MODELS * share),
        at_least("families compared", len(families), FEWEST_FAMILIES * share),
    ]
    code = f"from costmodels.language_model.read import read_language_model as read; read({LARGE})"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    bars.append(at_most("processor seconds for 120 layers, imports included", seconds, MOST_SECONDS))
    bars.append(at_most("MiB for 120 layers", after.ru_maxrss / 1024, MOST_MIB))
    return report(bars, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
