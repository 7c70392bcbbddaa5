"""Plans of layers: a language model whose operators cannot run here is divided as `planner.fit` divides it."""

from graphs.common.errors import InputError
from planner.generation.fit import fit
from planner.generation.plan import GenerationPlan
from planner.planning.make_plan import Search
from planner.planning.question import OpenWorkload, PlanQuestion
from planner.plans.given import NamedModel

LENGTHS = ("context", "sequences", "prompt", "output")
WAY_OUT = "leave it out, or give the model as package.module:factory, whose operators are placed one by one"


def divided_layers(question: PlanQuestion) -> GenerationPlan:
    """Return the division of `planner.fit` for a question that is `PlanQuestion.by_layers`.

    What the workload leaves open is as `planner.fit` has it.

    Raises:
        InputError: for what only a plan of operators has, several clusters, or what `planner.fit` refuses.
    """
    cluster, named = question.only_cluster, question.model
    asked = _of_operators(question)
    unknown = next((name for name, value in asked.items() if value), None)
    if unknown is not None:
        raise InputError(f"{unknown} is of operators, and layers are divided here; {WAY_OUT}")
    model = named.name if isinstance(named, NamedModel) else named
    lengths = {name: getattr(question.workload, name) for name in LENGTHS}
    return fit(model, cluster=cluster, **lengths)  # type: ignore[arg-type]  # a module is not by layers


def _of_operators(question: PlanQuestion) -> dict[str, object]:
    """Return what the question asks of operators, by the names that a message gives them."""
    search, usual, named = question.search, Search(), question.model
    opened = question.workload if isinstance(question.workload, OpenWorkload) else OpenWorkload()
    one = named if isinstance(named, NamedModel) else None
    return {
        "rows": opened.rows,
        "the batch": one and one.batch,
        "a size": one and one.sizes,
        "a kind of weights": one and one.weights,
        "example inputs": question.example_inputs is not None,
        "a constraint": question.constraints,
        "the solver": search.solver != usual.solver,
        "a robust search": search.robust,
        "rewrites": search.rewrites != usual.rewrites,
    }
