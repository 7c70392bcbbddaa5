"""The line of progress on a terminal. It has its own file because rich takes a tenth of a second to load."""

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

BAR = 16  # characters


class Times(ProgressColumn):
    """The share that is done and the time that is left, or the time so far where the total is unknown."""

    def render(self, task: Task) -> Text:
        """Return the text for one piece of work."""
        if limit_s := task.fields["limit_s"]:
            return Text(f"{_clock(max(0.0, limit_s - (task.elapsed or 0.0)))} left at most")
        if not task.total:
            return Text(_clock(task.elapsed or 0.0))
        share = f"{100 * task.completed / task.total:3.0f} %"
        left_s = task.time_remaining
        return Text(share if left_s is None else f"{share}  {_clock(left_s)} left")


def bar(name: str, limit_s: float) -> Progress:
    """Return a progress line on stderr, which vanishes when it is stopped; a limit of 0 means no limit."""
    rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # what the other columns leave
    line = Progress(
        SpinnerColumn(),
        BarColumn(bar_width=BAR),
        Times(table_column=Column(no_wrap=True)),
        TextColumn("{task.description}", markup=False, table_column=rest),
        console=Console(stderr=True),
        transient=True,
        expand=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    line.add_task(name, total=None, limit_s=limit_s)
    line.start()
    return line


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"
