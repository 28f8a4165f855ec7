# Everything a fresh machine with Python 3.11 needs: `make demo` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# Idle threads that spin slow down everything else on a small machine.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo bench test kernel-test sanitize fuzz vectors lint build clean

demo: $(VENV)/.demo
	$(BIN)/caffnet demo

# The yardstick for speed; `make bench BENCH=--quick` for a first look.
bench: $(VENV)/.test
	$(BIN)/caffnet bench $(BENCH)

test: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

# The kernel without Python, with every C compiler there is: its answers have the same bits.
KERNEL := src/caffnet/_kernel
KERNEL_TEST = -std=c11 -Wall -Wextra -Wconversion -Werror -ffp-contract=off -I$(KERNEL)
SANITIZE := -g -fsanitize=address,undefined -fno-sanitize-recover=all

kernel-test:
	mkdir -p build/kernel
	set -e; for cc in "$(CC)" clang "zig cc"; do command -v $${cc%% *} > /dev/null || continue; \
	$$cc $(KERNEL_TEST) -O2 tests/kernel/test_vectors.c $(KERNEL)/kernel.c -o build/kernel/test -lm; \
	printf '%s: ' "$$cc"; build/kernel/test; done

# Problems and answers for kernel-test, from the Python package: after a change that is meant to change answers.
vectors: $(VENV)/.test
	$(BIN)/python tests/kernel/make_vectors.py

# The same program, and the tests of the core, with a kernel that reports every wrong access and undefined operation.
sanitize: $(VENV)/.test
	mkdir -p build/kernel
	$(CC) $(KERNEL_TEST) -O1 $(SANITIZE) tests/kernel/test_vectors.c $(KERNEL)/kernel.c -o build/kernel/sanitized -lm
	build/kernel/sanitized
	$(BIN)/python tests/kernel/sanitize.py $(SANITIZE)

# Random small problems until SECONDS are over; seeds that fail are printed. `build/kernel/fuzz -r SEED` reduces one.
SECONDS ?= 60
fuzz:
	mkdir -p build/kernel
	$(CC) $(KERNEL_TEST) -O2 $(SANITIZE) tests/kernel/fuzz.c $(KERNEL)/kernel.c -o build/kernel/fuzz -lm
	build/kernel/fuzz $(SECONDS) $(SEED)

lint: $(VENV)/.test
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/pyright

# The wheel, installed into an environment of its own, must answer.
build: $(VENV)/.test
	rm -rf dist build/wheel
	$(BIN)/python -m build --wheel --outdir dist .
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip install -q -c constraints.txt dist/*.whl
	cd build && wheel/bin/python -c "import torch, caffnet, caffnet_lab; \
	print('wheel', caffnet.__version__, caffnet.project(torch.ones(2), caffnet.AffineSet.box(0.0, 0.5, dim=2)).value.tolist())"

clean:
	rm -rf $(VENV) dist build .pytest_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade "pip>=25.1"

# torch is pinned in constraints.txt: an unpinned one brings gigabytes of GPU packages.
$(VENV)/.demo: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[experiments]"
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[all]" --group test --group lint
	touch $@
