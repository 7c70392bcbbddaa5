"""Collect the wheels that a GPU's host without an index of packages lacks, to be carried there with the checkout.

    python -m tests.benchmarks.gpu.wheels [--into FOLDER] [--python 3.12] [NAME ...]

By default these are the few that images with PyTorch do not bring along; NAME adds others of `constraints.txt`, such as
numba and llvmlite. There, install them without an index and without what they need::

    python3 -m pip install --no-index --no-deps --target build/site build/wheels-for-gpu/*.whl
    PYTHONPATH=build/site python3 -m tests.benchmarks.gpu --json gpu.json
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
MISSING = ("PuLP", "highspy", "quickjs-ng")
"""Networks run without oneDNN's own interface (39 MB): CPUs then have exact kernels."""
MOST_BYTES = 64 * 2**20
PLATFORMS = [f"manylinux{kind}_x86_64" for kind in ("_2_28", "_2_27", "_2_24", "_2_17", "2014", "1")]


def pinned(names: list[str]) -> list[str]:
    """Return the requirements of these packages, with the versions that the tests ran with."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    known = {line.partition("==")[0].lower(): line for line in lines if re.fullmatch(r"[\w.-]+==[\w.]+", line)}
    unknown = [name for name in names if name.lower() not in known]
    if unknown:
        sys.exit(f"'{unknown[0]}' is not in constraints.txt; add it there")
    return [known[name.lower()] for name in names]


def main() -> int:
    """Download, and say how large it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="more packages of constraints.txt")
    parser.add_argument("--into", type=Path, default=ROOT / "build" / "wheels-for-gpu", help="the folder (build/...)")
    parser.add_argument("--python", default="3.12", help="Python of the GPU's host (3.12)")
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    for old in options.into.glob("*.whl"):
        old.unlink()
    where = [word for platform in PLATFORMS for word in ("--platform", platform)]
    how = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--implementation", "cp"]
    python = ["--python-version", options.python, "--dest", str(options.into)]
    wanted = pinned([*MISSING, *options.names])
    subprocess.run([sys.executable, "-m", "pip", "download", *how, *python, *where, *wanted], check=True)
    n_bytes = sum(wheel.stat().st_size for wheel in options.into.glob("*.whl"))
    print(f"{len(wanted)} wheels, {n_bytes / 2**20:.1f} MiB, in {options.into}")
    if n_bytes > MOST_BYTES:
        print(f"that is more than {MOST_BYTES / 2**20:.0f} MiB; name fewer packages", file=sys.stderr)
    return int(n_bytes > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
