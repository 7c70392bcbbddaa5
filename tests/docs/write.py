"""Run the pages of the documentation and write what they print now: ``python -m tests.docs.write [PAGE...]``.

With ``--measured`` the numbers that differ from run to run are written too: let the machine be quiet.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from planner.problem import deadline
from tests.docs.pages import PAGES, ROOT, SLOWER, corrected, run_page
from tests.docs.pictures import PICTURES


def write(page: Path, environment: dict[str, str], measured: bool) -> str:
    """Correct the outputs of a page; what to say about it."""
    text = page.read_text(encoding="utf-8")
    with TemporaryDirectory() as folder:
        outputs = run_page(text, Path(folder), environment)
    page.write_text(corrected(text, outputs, measured), encoding="utf-8")
    wrong = [output for output in outputs if not output.right]
    by_hand = "".join(f"\nchange by hand, {output}" for output in wrong if output.block.measured)
    return f"{page.relative_to(ROOT)}: {len(wrong)} of {len(outputs)} outputs were wrong{by_hand}"


def main(arguments: list[str]) -> None:
    """Correct the named pages, or all of them and the pictures."""
    deadline.BRAKE = SLOWER
    names = [name for name in arguments if name != "--measured"]
    for path, draw in PICTURES.items() if not names else ():
        path.write_text(draw(), encoding="utf-8")
    with TemporaryDirectory() as cache:
        for page in [Path(name).resolve() for name in names] or PAGES:
            print(write(page, {"PLANNER_CACHE": cache}, "--measured" in arguments), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
