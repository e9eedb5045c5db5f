# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
# oneDNN's newest bf16 kernels crash on some CPUs
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16

.PHONY: help setup demo test check-long coverage lint format bench docs dist clean

help:           ## these lines
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile

setup: .venv/dev        ## virtual environment with everything for development
	@$(BIN)/pre-commit install >/dev/null 2>&1 || true

demo: .venv/runtime     ## set up, train the demo models on the CPU, write runs/report.html
	$(BIN)/looped demo

test: .venv/dev lint    ## set up, then every check that CI runs
	$(BIN)/pytest -n 2 --dist loadgroup -m "not long"

check-long: .venv/dev   ## the tests that take too long for `make test`: a cluster that loses nodes, twenty kills, engines
	$(BIN)/pytest -n 2 --dist loadgroup -m long

coverage: .venv/dev     ## the same tests with their coverage, a third slower; fails below 85%
	$(BIN)/pytest -n 2 --dist loadgroup --cov --cov-report=term

lint: .venv/dev         ## style, types, layers, spelling, dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/codespell src tests docs benchmarks examples tools *.md
	$(BIN)/deptry src

format: .venv/dev       ## put the style right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

GPU_SCRIPTS := $(addprefix benchmarks/,time_to_quality.py side_by_side.py)

bench: .venv/dev        ## speed and memory, as ratios within one run; what needs a GPU is left out
	for script in $(filter-out $(GPU_SCRIPTS),$(wildcard benchmarks/*.py)); do $(BIN)/python $$script || exit 1; done

docs: .venv/docs        ## the documentation, in site/; nothing in it needs a network
	$(BIN)/python tools/figures_page.py
	$(BIN)/python tools/build_site.py

dist: .venv/dev         ## wheel and sdist in dist/; the wheel is installed and tried in a new environment, away from here
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv dist/new
	dist/new/bin/pip install --quiet --constraint constraints.txt "$$(echo dist/looped-*.whl)[baselines]"
	cd dist/new && bin/looped --version && bin/looped list models && bin/looped explore --out explorer.html --no-open
	cd dist/new && bin/looped list claims && bin/looped export yang24.linear --format torch
	echo 'import looped, typing; typing.assert_type(looped.load("yang24.linear"), looped.LoopedModel)' > dist/new/typed.py
	$(BIN)/pyright --pythonpath dist/new/bin/python dist/new/typed.py
	sed -n '/^```python/,/^```/p' README.md | grep -v '^```' | (cd dist/new && bin/python -)
	cd dist/new && bin/looped demo --no-open

clean:          ## remove the virtual environment and what was built
	rm -rf .venv site dist .pytest_cache .ruff_cache .coverage*

.venv/bin/pip:
	$(PYTHON) -m venv .venv

.venv/runtime: pyproject.toml constraints.txt | .venv/bin/pip
	$(PIP) --editable .
	@touch $@

.venv/dev: pyproject.toml constraints.txt | .venv/bin/pip
	$(PIP) --editable '.[dev]'
	@touch $@ .venv/runtime

.venv/docs: pyproject.toml constraints.txt | .venv/bin/pip
	$(PIP) --editable '.[docs]'
	@touch $@
