"""Public placement problems of Tarnawski et al. (NeurIPS 2020), and the solvers of a host with accelerators.

`offload` is their cost table, `evaluate` and `bounds` say what placements cost, and `portfolio` lists the solvers. All
are loaded with the package, because evaluation, bounds and `solve` dispatch on the type of the table.
"""

from planner.literature.placement import bounds as bounds
from planner.literature.placement import evaluate as evaluate
from planner.literature.placement import portfolio as portfolio
