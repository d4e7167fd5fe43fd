# make demo   compile SE-ResNet-101-IBN-a for this CPU and compare it with onnxruntime
# make test   the whole test suite
# make lint   ruff and mypy
# make conformance   the official ONNX suite in three forms at two opt levels, counted
# make operators   the same, the sweep over versions and element types, and the support table of
#                  docs/operators.md from what has run
# make architectures   models of torch, timm, transformers, diffusers, scikit-learn, Keras, counted
# Each works in a fresh clone: it creates $(VENV) and installs into it first.

PYTHON ?= python3
VENV ?= .venv
BATCH ?= 1
JOBS ?= 2

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
EXTRAS := compare,cross,examples,notebooks,test

.PHONY: demo test lint conformance operators architectures clean

demo: $(INSTALLED)
	$(BIN)/python -m benchmarks.compare_all se_resnet101_ibn_a --batch $(BATCH)

# Idle threads of one pytest process, ours or those of torch, must not spin on cores of another.
test: export TVM_THREAD_POOL_SPIN_COUNT = 0
test: export OMP_WAIT_POLICY = PASSIVE
test: $(INSTALLED)
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow"

lint: $(INSTALLED)
	$(BIN)/ruff check . && $(BIN)/ruff format --check --extend-exclude "*.md" .
	$(BIN)/mypy -p tvm_ext

conformance: export TVM_THREAD_POOL_SPIN_COUNT = 0
conformance: $(INSTALLED)
	mkdir -p out
	$(BIN)/python -m tests.official_suite --forms plain symbolic constant --levels 0 3 --jobs $(JOBS) \
		--results out/suite.jsonl

operators: export TVM_EXT_RECORD = $(CURDIR)/out/uses.jsonl
operators: conformance
	rm -f $(TVM_EXT_RECORD)
	$(BIN)/python -m pytest -n $(JOBS) tests/converters
	$(BIN)/python -m tests.operator_sweep
	$(BIN)/python -m tests.official_suite.table docs/operators.md out/suite.jsonl \
		--uses $(TVM_EXT_RECORD)

architectures: export TVM_THREAD_POOL_SPIN_COUNT = 0
architectures: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --editable ".[architectures]"
	$(BIN)/python -m tests.architectures --jobs $(JOBS)

$(INSTALLED): setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[$(EXTRAS)]"
	touch $@

clean:
	rm -rf $(VENV) out build dist *.egg-info
