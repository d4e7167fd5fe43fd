# make demo   compile SE-ResNet-101-IBN-a for this CPU and compare it with onnxruntime
# make test   the whole test suite
# make lint   ruff and mypy
# Each works in a fresh clone: it creates $(VENV) and installs into it first.

PYTHON ?= python3
VENV ?= .venv
BATCH ?= 1
JOBS ?= 2

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
EXTRAS := compare,cross,examples,notebooks,test

.PHONY: demo test lint clean

demo: $(INSTALLED)
	$(BIN)/python -m benchmarks.compare_all se_resnet101_ibn_a --batch $(BATCH)

# Idle threads of one pytest process must not spin on the cores of another.
test: export TVM_THREAD_POOL_SPIN_COUNT = 0
test: $(INSTALLED)
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow"

lint: $(INSTALLED)
	$(BIN)/ruff check . && $(BIN)/ruff format --check --extend-exclude "*.md" .
	$(BIN)/mypy -p tvm_ext

$(INSTALLED): setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[$(EXTRAS)]"
	touch $@

clean:
	rm -rf $(VENV) out build dist *.egg-info
