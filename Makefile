# Each target makes what it needs; the environment lives in .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup test check demo demo-multiprocess demo-object-store examples notebook docs test-stores test-ceph bench bench-full test-faults fuzz soak clean

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

# Two calls: the second goes on where the first one ended.
TRAINERS := train_linen train_nnx train_equinox train_iterator train_asyncio
OTHERS := warm_start evaluate sweep

$(TRAINERS:%=example-%): example-%: $(STAMP)
	run=$$(mktemp -d) && $(BIN)/python -m examples.$* --run=$$run/run --steps=20 && \
	$(BIN)/python -m examples.$* --run=$$run/run --steps=40 && rm -r $$run

$(OTHERS:%=example-%): example-%: $(STAMP)
	run=$$(mktemp -d) && $(BIN)/python -m examples.$* --run=$$run/run && rm -r $$run

example-train_gpt: $(STAMP)
	run=$$(mktemp -d) && $(BIN)/python -m examples.train_gpt --run=$$run/run && rm -r $$run

example-train_sharded: $(STAMP)
	export JAX_NUM_CPU_DEVICES=8 run=$$(mktemp -d) && \
	$(BIN)/python -m examples.train_sharded --run=$$run/run --mesh=4x2 && \
	$(BIN)/python -m examples.train_sharded --run=$$run/run --mesh=2x4 && rm -r $$run

example-train_multiprocess: $(STAMP)
	run=$$(mktemp -d) && \
	$(BIN)/python -m examples.train_multiprocess --run=$$run/run --processes=2 --steps=20 && \
	$(BIN)/python -m examples.train_multiprocess --run=$$run/run --processes=4 --steps=40 && rm -r $$run

MORE := train_gpt train_sharded train_multiprocess

examples: $(TRAINERS:%=example-%) $(OTHERS:%=example-%) $(MORE:%=example-%)

notebook: $(STAMP)
	$(BIN)/jupyter execute examples/tour.ipynb

docs: $(STAMP)
	$(BIN)/python docs/api.py

test-stores: $(STAMP)
	CKPTMGR_STORES=all $(BIN)/python -m pytest -q -o faulthandler_timeout=0 tests/storage

test-ceph: $(STAMP)
	which radosgw ceph-mon ceph-osd ceph-mgr || (apt-get update -q && apt-get install -yq --no-install-recommends radosgw ceph-mon ceph-osd ceph-mgr ceph-common)
	$(BIN)/python -m tests.storage.ceph $(BIN)/python -m pytest -q tests/storage -k "not gs and not moto"

test-faults: $(STAMP)
	CKPTMGR_FAULTS=all $(BIN)/python -m pytest -q -rP tests/crash tests/test_trust.py

fuzz: $(STAMP)
	CKPTMGR_FUZZ=1000000 $(BIN)/python -m pytest -q -rP -o faulthandler_timeout=0 tests/hostile/test_fuzz.py tests/interop/test_fuzz.py

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
