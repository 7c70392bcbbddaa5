"""torch-schedule-csv: the order of a training step, as torch's ``_PipelineScheduleRuntime._load_csv`` reads it.

::

    0F0,0F1,0B0,0B1      a line for each rank: stage, F, B, I or W, micro-batch
    1F0,1B0,1F1,1B1
"""

from planner.export.records import Export, refuse
from planner.plans.plan import Plan
from planner.problem.problem import Goal

NAME = "torch-schedule-csv"


def torch_schedule_csv(plan: Plan) -> Export:
    """The schedule of a training plan, for torch.distributed.pipelining.

    Rank 0 is the device of the first stage, and so on in the order in which a micro-batch first comes to them.

    Raises:
        InputError: if the plan is not for training.
    """
    if plan.goal is not Goal.TRAINING:
        raise refuse(NAME, f"the plan is for {plan.goal}", "needs a schedule", "plan with --goal training")
    return Export(plan.training_run.pipeline.lowered.schedule.to_csv())
