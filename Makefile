# `make demo` and `make test` need only make and Python 3.11 or 3.12; each sets
# up what it needs in .venv first. Another Python: make test PYTHON=python3.12.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# pip with the releases that were tested, for the Python of the environment.
INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check \
	--constraint constraints-$$($(BIN)/python -c \
	'import sys; print("py%d%d" % sys.version_info[:2])').txt

.PHONY: demo test test-slow lint parity tpu clean

demo: $(VENV)/core.stamp
	$(BIN)/dapo-jax sft --config=configs/demo.py --workdir=runs/demo/sft
	$(BIN)/dapo-jax train --config=configs/demo.py --workdir=runs/demo/dapo \
		--config.model.path=runs/demo/sft/model

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -q -n 2 --dist=loadfile

test-slow: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -q -m slow

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Adds torch, for the tests that compare with it; they are skipped without.
parity: $(VENV)/parity.stamp

# Adds libtpu, for the plan of TPU slices; there is none but for Linux on x86-64.
tpu: $(VENV)/tpu.stamp

clean:
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/core.stamp: setup.py dapo_jax/__init__.py $(wildcard constraints-*.txt)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] not in \
		((3, 11), (3, 12)))' || { echo "error: dapo-jax needs Python 3.11 or" \
		"3.12 and $(PYTHON) is not;" \
		"try make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	@echo "Setting up $(VENV), once; this takes some minutes."
	$(INSTALL) --editable .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/core.stamp
	$(INSTALL) --editable '.[dev]'
	@$(INSTALL) --editable '.[tasks]' || echo "reasoning-gym was not" \
		"installed (it needs a C compiler); its tests are skipped" >&2
	@touch $@

$(VENV)/parity.stamp: $(VENV)/dev.stamp
	$(INSTALL) --editable '.[parity]'
	@touch $@

$(VENV)/tpu.stamp: $(VENV)/dev.stamp
	$(INSTALL) --editable '.[tpu]'
	@touch $@
