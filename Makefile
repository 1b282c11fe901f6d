# Each target makes what it needs; the environment lives in .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup test check demo demo-multiprocess bench bench-full test-faults fuzz soak clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -e '.[test,check,examples]'
	touch $(STAMP)

test: $(STAMP)
	$(BIN)/python -m pytest -q

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py
	$(BIN)/python -m pytest -q -m wheel tests/test_wheel.py

demo: $(STAMP)
	$(BIN)/python -m examples.demo

demo-multiprocess: $(STAMP)
	$(BIN)/python -m examples.demo_multiprocess

test-faults: $(STAMP)
	CKPTMGR_FAULTS=all $(BIN)/python -m pytest -q -rP tests/crash tests/test_trust.py

fuzz: $(STAMP)
	CKPTMGR_FUZZ=1000000 $(BIN)/python -m pytest -q -rP -o faulthandler_timeout=0 tests/hostile/test_fuzz.py

soak: $(STAMP)
	JAX_PLATFORMS=cpu $(BIN)/python -m tests.soak

bench: $(STAMP)
	$(BIN)/python -m pip install -q -e '.[bench]'
	$(BIN)/python -m tests.benchmarks

bench-full: $(STAMP)
	$(BIN)/python -m pip install -q -e '.[bench]'
	$(BIN)/python -m tests.benchmarks --full

clean:
	rm -rf .venv build dist results *.egg-info
