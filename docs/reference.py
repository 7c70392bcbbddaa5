"""The API reference as HTML pages, from the docstrings: ``python docs/reference.py FOLDER``.

The door is the package `planner`; besides, the modules whose records one meets behind it.
"""

import sys
import warnings
from importlib import import_module
from pathlib import Path

from pdoc import doc, render

import planner

BEHIND = (
    *("graphs.ir", "graphs.files", "graphs.common.errors", "graphs.importers.load", "graphs.program.program"),
    *(
        "costmodels.cluster.cluster",
        "costmodels.cluster.file",
        "costmodels.cluster.writer",
        "costmodels.cluster.catalogue",
        "costmodels.table",
        "costmodels.tabulate",
    ),
    *("simulator.placement", "simulator.simulate", "simulator.timeline", "simulator.training", "simulator.schedule"),
    *("planner.problem.constraints", "planner.solvers.portfolio", "planner.solvers.base", "planner.solvers.exhaustive"),
    *(
        "planner.literature.placement.public_format",
        "planner.plans.prediction",
        "planner.explanations.changes",
        "planner.explanations.settings",
    ),
    *("planner.explanations.explain", "planner.plans.schemas", "planner.exports.targets", "planner.exports.maps"),
    *(
        "planner.problem.bounds",
        "planner.problem.infeasible",
        "planner.parallelism.network.schedule_sweep",
        "planner.parallelism.network.training_rows",
        "planner.planning.tune",
    ),
)


class Page(doc.Module):
    """A module without its submodules: `planner.plan` is the function, not the file that it stands in."""

    submodules: list[doc.Module] = []  # noqa: RUF012  # cached there


def main(folder: str) -> None:
    """Write the pages; a warning is an error."""
    warnings.simplefilter("error")
    for name in planner.__all__:
        getattr(planner, name)  # each comes when it is asked for; pdoc only looks at what is there
    render.configure(docformat="google", footer_text="placement-planner")
    pages: dict[str, doc.Module] = {name: Page(import_module(name)) for name in ("planner", *BEHIND)}
    for name, page in pages.items():
        path = Path(folder, *name.split(".")).with_suffix(".html")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render.html_module(page, pages), encoding="utf-8")
    Path(folder, "index.html").write_text(render.html_index(pages), encoding="utf-8")
    Path(folder, "search.js").write_text(render.search_index(pages), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
