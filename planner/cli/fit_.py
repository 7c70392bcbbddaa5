"""Does a language model fit, how is it divided, how fast will it be: on paper, from its headers alone.

planner fit config.json --cluster 2xRTX-4090:PCIe4 --weights q4_K --context 16384
planner fit model.gguf --cluster cluster.toml --sequences 4 --cache q8_0 -o plan.json
planner fit model.gguf --cluster cluster.toml --prompt 4096 --output 512 --html plan.html
planner fit model.safetensors.index.json --cluster 8xH100-SXM-80GB:NVLink4 --serve --ttft 300ms --tpot 20ms
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from costmodels.language_model.model import ModelDescription
from costmodels.units import format_bytes, format_seconds
from graphs.common.errors import InputError
from planner.cli.console import Console
from planner.cli.files import declare_writes
from planner.cli.numbers import at_least_one, seconds
from planner.cli.statuses import DONE, NO_PLAN
from planner.cli.text import count, table, wrapped
from planner.generation.fit import fit
from planner.generation.plan import GenerationPlan, plan_document
from planner.generation.question import ASKED
from planner.generation.serve import ServingLimits, ServingTable, serve, serving_document
from planner.generation.serving_row import ServingGPUs, ServingRow
from planner.generation.words import (
    DEVICE_HEADS,
    bound_words,
    device_rows,
    expected_lines,
    layer_words,
    range_words,
)
from planner.view.show import show

SERVE_HEADS = (
    *("", "tokens/s a GPU", "tokens/s a user", "first token", "each token", "sequences", "t×p×d"),
    *("experts", "replicas", "weights", "cache", "prompts apart"),
)


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``planner fit``."""
    parser.add_argument(
        "model", type=Path, metavar="MODEL", help="config.json, .gguf, .safetensors or its index; only headers are read"
    )
    parser.add_argument("--cluster", type=Path, required=True, metavar="FILE", help="cluster.toml, or one line")
    parser.add_argument("--context", type=at_least_one, metavar="N", help="tokens that a sequence has room for (8192)")
    parser.add_argument("--sequences", type=at_least_one, metavar="N", help="sequences at once (1)")
    parser.add_argument("--weights", metavar="FORMAT", help="format of the weights: q4_K, fp8, awq, ... (the file's)")
    parser.add_argument("--cache", metavar="FORMAT", help="format of the cache: float16, q8_0, fp8, q4_0 (float16)")
    parser.add_argument("--prompt", type=at_least_one, metavar="N", help="tokens of a prompt (512)")
    parser.add_argument("--output", type=at_least_one, metavar="N", help="tokens of an answer (256)")
    parser.add_argument("--engine", metavar="NAME", help="llama-cpp, vllm, sglang or trtllm (llama-cpp; vllm to serve)")
    parser.add_argument("--serve", action="store_true", help="rows of parallelism and batch on equal GPUs")
    parser.add_argument("--ttft", type=seconds, metavar="TIME", help="with --serve: at most so long to the first token")
    parser.add_argument("--tpot", type=seconds, metavar="TIME", help="with --serve: at most so long for each token")
    parser.add_argument("-o", "--plan", type=Path, metavar="FILE", help="write the plan, for planner export")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the plan as a page")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the plan as a picture")
    declare_writes(parser, "plan", "html", "svg")


def run(options: argparse.Namespace, console: Console) -> int:
    """Fit, and print the division with what each device holds and what to expect."""
    asked = {name: getattr(options, name) for name in ASKED}
    if options.serve:
        return _serve(options, asked, console)
    if options.ttft is not None or options.tpot is not None:
        raise InputError("--ttft and --tpot bound the rows of --serve; add it, or leave them out")
    plan = fit(options.model, cluster=options.cluster, **asked)
    status = show_division(plan, options.plan, console)
    for format in ("html", "svg"):
        path: Path | None = getattr(options, format)
        if path is not None and status == DONE:
            show(plan, path, format=format)
    return status


def show_division(plan: GenerationPlan, output: Path | None, console: Console) -> int:
    """Write a division to a file, if there is one, and print it; return the exit status."""
    if plan.question.beyond_training:
        console.note(_beyond(plan))
    _note_assumed(plan.question.model, console)
    if plan.speeds is None:
        if console.json:
            console.tell(plan_document(plan), ())
        console.error(plan.advice)
        return NO_PLAN
    if output is not None:
        plan.save(output)
    console.tell(plan_document(plan), _lines(plan))
    return DONE


def _note_assumed(model: ModelDescription, console: Console) -> None:
    if model.assumed:
        console.note(
            f"note: the config leaves out sizes, and transformers' defaults were taken: {', '.join(model.assumed)}; "
            "add those that differ"
        )


def _beyond(plan: GenerationPlan) -> str:
    question = plan.question
    return (
        f"note: the context of {question.context:,} tokens is more than the {question.model.trained_tokens:,} that the "
        "model was trained for"
    )


def _lines(plan: GenerationPlan) -> Iterator[str]:
    yield layer_words(plan)
    yield from table(DEVICE_HEADS, device_rows(plan))
    for line in expected_lines(plan):
        yield from wrapped(line, indent=0)
    yield bound_words(plan)


def _serve(options: argparse.Namespace, asked: dict[str, object], console: Console) -> int:
    for name in ("plan", "html", "svg"):
        if getattr(options, name) is not None:
            raise InputError(f"--{name} writes one division, and --serve finds many; leave one of them out")
    limits = ServingLimits(options.ttft, options.tpot)
    found = serve(options.model, cluster=options.cluster, limits=limits, **asked)
    _note_assumed(found.question.model, console)
    if not found.rows:
        if console.json:
            console.tell(serving_document(found), ())
        console.error(found.advice)
        return NO_PLAN
    console.tell(serving_document(found), _serving_lines(found))
    return DONE


def _serving_lines(found: ServingTable) -> Iterator[str]:
    question = found.question
    yield (
        f"{question.model.name} with {question.engine.name} on {count(len(question.cluster.devices), 'GPU')}: "
        f"prompts of {question.prompt:,} tokens, answers of {question.output:,}, room for {question.context:,}"
    )
    yield from table(SERVE_HEADS, [_serving_cells(number, row) for number, row in enumerate(found.rows, 1)])
    low, high = found.token_range
    yield f"times of a token are {found.origin}; 80 % of measured ones lie {range_words(low, high)} of them"
    yield (
        f"no row is beaten for the GPU and for the user by another of {found.priced:,} ways that were all priced, of "
        f"which {found.fitting:,} fit and keep the limits"
    )


def _serving_cells(number: int, row: ServingRow) -> Sequence[str]:
    return (
        str(number),
        f"{row.tokens_per_s_gpu:,.0f}",
        f"{row.tokens_per_s_user:,.1f}",
        format_seconds(row.first_token_s),
        format_seconds(row.token_s),
        f"{row.sequences:,}",
        f"{row.tensor}×{row.pipeline}×{row.data}",
        f"over {row.experts}" if row.experts > 1 else "",
        str(row.replicas),
        format_bytes(row.weight_bytes),
        format_bytes(row.cache_bytes),
        "" if row.prompts is None else _prompt_cells(row.prompts),
    )


def _prompt_cells(own: ServingGPUs) -> str:
    spread = f" over {own.experts}" if own.experts > 1 else ""
    return f"{own.replicas} of {own.tensor}×{own.pipeline}×{own.data}{spread}"
