# make install   only the installation
# make run    everything on the embedded sample: dump -> positions -> checkpoint -> report
# make ui     Dagster's web UI on http://127.0.0.1:3000
# make play   the board in the browser on http://127.0.0.1:8000: play, ask, review; BOARD=8001 for another port
# make ui-postgres   the same with Dagster's state in PostgreSQL (dagster_home/README.md)
# make test   every check there is but the long proofs; make test-slow runs those too
# make gpu    checks and measures this machine's GPU in 8 minutes, and prints a table for docs/benchmarks.md
# make pictures   docs/images taken anew, in Chromium, and the outputs of docs/first_steps.ipynb; GAMES=PGN: games for the report;
#                 before these, the pages in build/screens, to look at
# make docs   the reference of the Python API as web pages, in docs/site
# make test-lowest   the quick tests with the lowest versions that pyproject.toml admits

PYTHON ?= python3
MINUTES ?= 1.5
PORT ?= 3000
BOARD ?= 8000
GAMES ?= datasets/sample/fianchetto_sample_2000.pgn.zst
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CHECKED := $(VENV)/.checked
LOWEST := .venv-lowest
QUICK := $(addprefix tests/,engine/search engine/uci/test_engine.py engine/uci/test_commands.py model/inference/test_export.py \
	model/training/test_optimizers.py model/training/test_loop.py pipeline/dataset/test_batches.py \
	pipeline/dataset/test_training_set.py pipeline/ingest/test_job.py pipeline/ingest/test_job_bounds.py \
	pipeline/storage/test_streams.py pipeline/cli/test_main.py pipeline/evaluation/test_report.py \
	pipeline/validation/test_verify.py pipeline/defs/test_definitions.py pipeline/defs/launchpad/test_forms.py)
export DAGSTER_HOME := $(CURDIR)/dagster_home
# Each command starts several processes, and without .pyc files each of them compiles torch's modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install help run ui play ui-postgres docs test test-slow test-lowest check kernels format pictures clean

install: $(READY)

help:
	@grep '^# make ' Makefile | cut -c 3-

run: $(READY)
	$(BIN)/python -m pipeline.defs.first_network --minutes $(MINUTES)

docs: $(READY)
	$(BIN)/pip install --quiet -e ".[docs]" -c constraints.txt
	$(BIN)/mkdocs build --quiet --strict --config-file docs/mkdocs.yml

ui: $(READY)
	$(BIN)/python -m pipeline.defs.ui --port $(PORT)

play: $(READY)
	$(BIN)/fianchetto play --port $(BOARD)

# The settings are dagster.yaml and where the state lies; the folder is the instance's home, git-ignored.
ui-postgres: export DAGSTER_HOME := $(CURDIR)/dagster_home/postgres
ui-postgres: export PGHOST ?= 127.0.0.1
ui-postgres: export PGPORT ?= 5432
ui-postgres: export PGDATABASE ?= dagster
ui-postgres: export PGUSER ?= dagster
ui-postgres: $(READY)
	@test -n "$$PGPASSWORD" || { echo "PGPASSWORD is not set: dagster_home/README.md says how to begin"; exit 2; }
	$(BIN)/pip install --quiet -e ".[postgres]" -c constraints.txt
	mkdir -p $(DAGSTER_HOME)
	cat dagster_home/dagster.yaml dagster_home/dagster-postgres.yaml > $(DAGSTER_HOME)/dagster.yaml
	$(BIN)/python -m pipeline.defs.ui --port $(PORT)

test: $(CHECKED)
	$(MAKE) --jobs 2 check kernels
	$(BIN)/pytest -n 3 -m "not slow"

# Besides: apt-get install chromium stockfish postgresql. Proofs whose tools are not there are skipped, saying so.
test-slow: $(CHECKED)
	$(BIN)/pip install --quiet -e ".[proofs]" -c constraints.txt
	$(MAKE) --jobs 2 check kernels
	$(BIN)/pytest -n 2 -m "not serial"
	$(BIN)/pytest -m serial

# Beside .venv, with kernels of its own: Numba keeps those of one version in a folder. torch first, and the tested build of it:
# other versions bring gigabytes of CUDA, so its lower bound is not tested here.
test-lowest: export NUMBA_CACHE_DIR := $(CURDIR)/$(LOWEST)/kernels
test-lowest: $(CHECKED)
	$(PYTHON) -m venv $(LOWEST)
	$(BIN)/python -m tests.lowest > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/pip install --quiet torch==2.13.0 -c $(LOWEST)/constraints.txt
	$(LOWEST)/bin/pip install --quiet -e ".[dev]" -c $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m tests.kernels
	$(LOWEST)/bin/pytest -n 3 -m "not slow" $(QUICK)

.PHONY: gpu
gpu: $(CHECKED)
	$(BIN)/python -m benchmarks.gpu

check: $(CHECKED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Workers of pytest would each compile all of them; the linters run meanwhile.
kernels: $(CHECKED)
	$(BIN)/python -m tests.kernels

format: $(CHECKED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Besides: apt-get install chromium.
.PHONY: pictures
pictures: $(CHECKED)
	$(BIN)/pip install --quiet -e ".[browser]" -c constraints.txt
	$(BIN)/python -m tests.screens
	$(BIN)/python -m tests.pictures --games $(GAMES) --minutes $(MINUTES)
	$(BIN)/python -m tests.notebook

# torch is pinned, because another version may bring gigabytes of CUDA. Python compiles the modules
# that are imported, a part of all.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile torch==2.13.0 -e ".[onnx]" -c constraints.txt
	touch $(READY)

# The tools of tests and checks besides, which `make run` does not wait for.
$(CHECKED): $(READY)
	$(BIN)/pip install --quiet --no-compile -e ".[dev]" -c constraints.txt
	touch $(CHECKED)

clean:
	rm -rf $(VENV) $(LOWEST) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
