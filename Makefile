# Each target makes the virtual environment it needs; nothing else has to be set up first.
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
READY := $(VENV)/ready
VLLM_VENV := .venv-vllm
VLLM := $(VLLM_VENV)/bin/python
VLLM_MODEL := $(VLLM_VENV)/SmolLM2-135M-Instruct
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: run test check bench soak gpu-check clean run-vllm bench-vllm test-vllm

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

run: $(READY)  ## the main job: a trace through CPU rows, disk and a bucket, twice
	$(BIN)/python examples/run_replay.py

check: $(READY)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: $(READY)  ## all tests
	$(BIN)/python -m pytest

bench: $(READY)  ## ratios against this machine's own limits
	$(BIN)/python -m benchmarks

soak: $(READY)  ## ten minutes under every fault, and 20,000 random histories
	$(BIN)/python -m benchmarks.soak
	$(BIN)/python -m pytest tests/manager/test_manager_machine.py --machine-examples 20000

gpu-check:  ## the device path on this machine's GPU; needs torch and numpy, and cuda-bindings for batched copies
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m benchmarks.gpu_check

$(VLLM_VENV)/ready: examples/vllm/setup_venv.py
	$(PYTHON) examples/vllm/setup_venv.py $(VLLM_VENV)

run-vllm: $(VLLM_VENV)/ready  ## conversations with vLLM over CPU rows, a disk and a bucket, and restarts; MODEL=... for another model
	$(if $(MODEL),,$(VLLM) examples/vllm/prepare_model.py $(VLLM_MODEL))
	$(VLLM) examples/vllm/run_conversations.py --model $(or $(MODEL),$(VLLM_MODEL))

bench-vllm: $(VLLM_VENV)/ready  ## what tiering costs vLLM, and what a hit saves; MODEL=... for another model
	$(if $(MODEL),,$(VLLM) examples/vllm/prepare_model.py $(VLLM_MODEL))
	$(VLLM) -m benchmarks.vllm_overhead --model $(or $(MODEL),$(VLLM_MODEL))

test-vllm: $(VLLM_VENV)/ready  ## the tests of the vLLM plugin, against the real engine
	$(VLLM) -m pytest tests/vllm

clean:
	rm -rf $(VENV) $(VLLM_VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
