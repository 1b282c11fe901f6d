# Each target makes what it needs; the environment lives in .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup test check demo demo-multiprocess demo-object-store test-stores test-ceph bench bench-full test-faults fuzz soak clean

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

demo-object-store: $(STAMP)
	$(BIN)/python -m examples.demo_object_store

test-stores: $(STAMP)
	CKPTMGR_STORES=all $(BIN)/python -m pytest -q -o faulthandler_timeout=0 tests/storage

test-ceph: $(STAMP)
	which radosgw ceph-mon ceph-osd ceph-mgr || (apt-get update -q && apt-get install -yq --no-install-recommends radosgw ceph-mon ceph-osd ceph-mgr ceph-common)
	$(BIN)/python -m tests.storage.ceph $(BIN)/python -m pytest -q tests/storage -k "not gs and not moto"

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
