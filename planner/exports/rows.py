"""export_row: a row of `planner.choose` for the tool that trains."""

from graphs.common import checks
from planner.parallelism.exports.parallel_config import CONFIG_TARGETS, export_config
from planner.planning.choose import TransformerChoices, row_of
from planner.plans.exported import Export


def export_row(choices: TransformerChoices, to: str, *, row: int = 1, all: bool = False) -> Export:
    """Return a row of a transformer in the format of another tool.

    Args:
        choices: from `planner.choose`.
        to: the tool: a name from `CONFIG_TARGETS`.
        row: its number among the rows, from 1.
        all: whether it counts among all rows.

    Raises:
        InputError: for an unknown tool, a row that there is not, or one that the tool cannot express.
    """
    checks.instance(choices, TransformerChoices, "what to export", "what planner.choose found for a transformer")
    checks.one_of(to, "the target", CONFIG_TARGETS)
    checks.instance(all, bool, "all", "True or False")
    return export_config(choices.setting, row_of(choices.rows(all), row).config, to)
