"""Install a wheel into empty environments, with the oldest and the newest of each dependency, and try it there.

    python -m tests.benchmarks.matrix [WHEEL] [--python PYTHON ...] [--which oldest newest] [--tests] [--json FILE]

WHEEL is that of build/dist by default (`make dist`), and PYTHON every python3.11 to python3.13 that starts. Each cell
is an environment in a folder that goes again: `.ci/smoke` runs from the wheel alone, and with ``--tests`` those tests
that do without PyTorch. The versions are uv's: the lowest that the bounds allow, or the newest. PyTorch is always
`TORCH`, a build for CPUs, since others bring gigabytes of CUDA's libraries; where there is none for a Python, only what
needs no PyTorch is tried, which the name of the cell says.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.benchmarks.bars import Bar, at_least, report

ROOT = Path(__file__).parents[2]
TORCH = "torch==2.13.0+cpu"
PYTHONS = ("python3.11", "python3.12", "python3.13")
RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}
UV = ROOT / "build" / "tools" / "bin" / "uv"  # `make dist` installs it
LIMIT_S = 900.0  # of one command
WITHOUT_TORCH = [
    "tests/simulator",
    "tests/planner/problem",
    "tests/planner/solvers/latency",
    "tests/costmodels/cluster",
]


def requirements() -> list[str]:
    """Return the dependencies of pyproject.toml without PyTorch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [line for line in project["dependencies"] if not line.startswith("torch>")]


def run(
    *words: str | Path, folder: Path = ROOT, environment: Mapping[str, str] = {}
) -> subprocess.CompletedProcess[str]:
    """Run a command, and raise CalledProcessError with what it printed if it fails."""
    found = {**os.environ, **environment}
    found.pop("PYTHONPATH", None)
    done = subprocess.run(words, cwd=folder, env=found, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        print(done.stdout[-2000:], done.stderr[-3000:], sep="\n", file=sys.stderr)
        done.check_returncode()
    return done


def starts(python: str) -> bool:
    """Return whether a Python is on PATH and starts; the shim of a version that was not chosen does not."""
    return bool(shutil.which(python)) and not subprocess.run([python, "--version"], capture_output=True).returncode


def resolved(python: Path, which: str, folder: Path) -> list[str]:
    """Return the versions of all that the project needs besides PyTorch, as name==version."""
    wanted = folder / "requirements.in"
    wanted.write_text("\n".join(requirements()) + "\n", encoding="utf-8")
    how = ["--resolution", RESOLUTIONS[which], "--only-binary", ":all:", "--python", str(python)]
    links = {"UV_FIND_LINKS": links} if (links := os.environ.get("PIP_FIND_LINKS")) else {}
    command: list[str | Path] = [
        UV,
        "pip",
        "compile",
        "--quiet",
        "--no-header",
        "--no-annotate",
        *how,
        str(wanted),
    ]
    return run(*command, environment=links).stdout.split()


def installed_in(python: str, which: str, wheel: Path, folder: Path) -> tuple[Path, bool]:
    """Make an environment and install the wheel; return its Python, and whether PyTorch is there."""
    run(python, "-m", "venv", folder / "empty")
    own = folder / "empty" / "bin" / "python"
    pins = resolved(own, which, folder)
    print(f"       {' '.join(pins)}", flush=True)
    pip: list[str | Path] = [
        own,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--only-binary=:all:",
    ]
    run(*pip, "--no-deps", *pins)
    try:
        run(*pip, TORCH)
    except subprocess.CalledProcessError:
        return own, bool(run(*pip, "--no-deps", wheel).returncode)
    run(*pip, wheel)
    run(own, "-m", "pip", "check")
    return own, True


def tried(python: str, which: str, wheel: Path, plan: Path, tests: bool) -> Iterator[Bar]:
    """Yield whether the wheel installs and runs in one cell."""
    version = run(python, "--version").stdout.strip()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        own, has_torch = installed_in(python, which, wheel, folder)
        cell = f"{version}, {which}{'' if has_torch else ', without PyTorch'}"
        (folder / "work").mkdir()
        path, cache = f"{own.parent}:{os.environ['PATH']}", str(folder / "cache")
        words = [] if has_torch else ["light", str(plan)]
        run(ROOT / ".ci" / "smoke", *words, folder=folder / "work", environment={"PATH": path, "PLANNER_CACHE": cache})
        yield at_least(f"{cell}: the wheel runs", 1, 1)
        if tests:
            run(
                own, "-m", "pip", "install", "--quiet", "pytest", "pytest-xdist", "hypothesis", "jsonschema", "resvg-py"
            )
            found = [path for path in WITHOUT_TORCH if (ROOT / path).exists()]
            print(run(own, "-m", "pytest", "-q", "-n", "0", "--ignore-glob=*torch*", *found).stdout[-300:], flush=True)
            yield at_least(f"{cell}: tests pass", 1, 1)


def all_cells(options: argparse.Namespace) -> Iterator[Bar]:
    """Try every cell; one that fails fails its own bar."""
    wheel = options.wheel or next(iter(sorted((ROOT / "build" / "dist").glob("*.whl"))), None)
    if wheel is None:
        sys.exit("there is no wheel in build/dist; say `make dist`, or name one")
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        model = ["examples.networks:mnist", "--cluster", "2xRTX-4090:PCIe4", "--goal", "throughput"]
        run(sys.executable, "-m", "planner", "plan", *model, "-o", plan)
        for python in options.python or filter(starts, PYTHONS):
            for which in options.which:
                try:
                    yield from tried(python, which, wheel.resolve(), plan, options.tests)
                except subprocess.SubprocessError as error:
                    yield Bar(f"{python}, {which}: {str(error)[:200]}", 0, 1, False)


def main(words: Sequence[str] | None = None) -> int:
    """Try the cells that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", nargs="?", type=Path, metavar="WHEEL", help="the newest of build/dist by default")
    parser.add_argument(
        "--python", nargs="+", metavar="PYTHON", help=f"of {', '.join(PYTHONS)} those that start by default"
    )
    parser.add_argument("--which", nargs="+", choices=RESOLUTIONS, default=list(RESOLUTIONS), help="versions")
    parser.add_argument("--tests", action="store_true", help="run the tests that do without PyTorch, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the bars here")
    options = parser.parse_args(words)
    return report(list(all_cells(options)), options.json)


if __name__ == "__main__":
    sys.exit(main())
