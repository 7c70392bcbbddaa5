# Two commands for a newcomer: `make demo` and `make test`. Both set up .venv first.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# Three processes for two cores: tests wait for others in a third of their time. In the order of the folders, in which
# pages, the longest files, come early and short files last, so that all end at the same time.
PARALLEL := --numprocesses 3 --dist loadfile --no-loadscope-reorder
INSTALLED := $(VENV)/installed

.PHONY: demo test long quick wheel dist lint types docs pages clean

demo: $(INSTALLED)
	$(BIN)/python -m examples.demo

# Workers share the cores: a thread that waits for others lets them run instead of spinning.
test long quick: export OMP_WAIT_POLICY := passive

# Modules are compiled once, not in each of the many processes that tests start.
unexport PYTHONDONTWRITEBYTECODE

test: $(INSTALLED)
	$(MAKE) --no-print-directory --jobs 2 --output-sync lint types docs
	$(BIN)/python -m pytest $(PARALLEL) -m "not long"

# The tests that show for one more network or goal what those of `make test` show, see tests/long.txt.
long: $(INSTALLED)
	$(BIN)/python -m pytest $(PARALLEL) -m long

quick: $(INSTALLED)
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow and not long"

# The README's first commands from the wheel, outside of this checkout.
wheel: $(INSTALLED)
	.ci/wheel

# A release: sdist, wheel and bill of materials in build/dist, checked.
dist: $(INSTALLED)
	.ci/dist

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

docs: $(INSTALLED)
	$(BIN)/python docs/reference.py build/docs

# What the commands and snippets of README.md and docs/ print, written into these pages again.
pages: $(INSTALLED)
	$(BIN)/python -m tests.docs.write

$(INSTALLED): pyproject.toml constraints.txt
	command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.11 or say make PYTHON=python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,docs]'
	$(BIN)/python -m pip check
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
