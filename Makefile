# Everything a fresh machine with Python 3.11 needs: `make demo` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# Idle threads that spin slow down everything else on a small machine.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo bench test kernel-test arm-test sanitize fuzz vectors lint build docs gallery gpu playground playground-test wheels release release-check source-install clean

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

# The same program for aarch64, under qemu-user.
arm-test: $(VENV)/.test
	mkdir -p build/kernel
	$(BIN)/python -m ziglang cc -target aarch64-linux-musl $(KERNEL_TEST) -O2 tests/kernel/test_vectors.c $(KERNEL)/kernel.c \
	-o build/kernel/test-arm -lm
	qemu-aarch64 build/kernel/test-arm

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
	$(BIN)/ruff check src tests benchmarks docs release
	$(BIN)/ruff format --check src tests benchmarks docs release
	$(BIN)/pyright

# The wheel, installed into an environment of its own, must answer.
build: $(VENV)/.test
	rm -rf dist build/wheel
	$(BIN)/python -m build --wheel --outdir dist .
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip install -q -c constraints.txt dist/*.whl
	cd build && wheel/bin/python -c "import torch, caffnet, caffnet_lab; \
	print('wheel', caffnet.__version__, caffnet.project(torch.ones(2), caffnet.AffineSet.box(0.0, 0.5, dim=2)).value.tolist())"

# The site, into build/site: strict, no broken link, nothing fetched. (--quiet would hide warnings from `strict`.)
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# Runs the scripts of the gallery in full and keeps what they print and draw; `make gallery GALLERY=repair` for one.
gallery: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python docs/tools/cells.py $(GALLERY)

# Machine code for GPUs, with registers and spills; needs cuda-bindings and NVRTC of CUDA 12, and no GPU.
gpu: $(VENV)/.test
	$(BIN)/python -m pip install -q "cuda-bindings>=12.9,<13" "nvidia-cuda-nvrtc-cu12>=12.9,<13"
	$(BIN)/python -m caffnet._kernel.gpu sm_70 sm_80 sm_90

# One page that works offline; npm fetches the driver of the browser for its test.
playground: $(VENV)/.test
	$(BIN)/python playground/make.py

playground-test: $(VENV)/.test
	mkdir -p build/node && npm install --silent --prefix build/node playwright-core
	$(BIN)/python -m pytest tests/playground

# Wheels for every platform, by ziglang; the release checklist is in CONTRIBUTING.md.
WHEELS = manylinux_2_17_x86_64 manylinux_2_17_aarch64 macosx_10_13_x86_64 macosx_11_0_arm64 win_amd64
wheels: $(VENV)/.test
	rm -rf dist build/wheels
	set -e; for wheel in $(WHEELS); do CAFFNET_WHEEL=$$wheel $(BIN)/python -m build --wheel --outdir dist .; done
	$(BIN)/python -m build --sdist --outdir dist .
	$(BIN)/python -m twine check --strict dist/*

# Everything before a tag, from a clean clone. The last step says what does not agree yet: versions, changelog, dist, tag.
release: lint test docs kernel-test sanitize wheels source-install release-check

release-check:
	$(PYTHON) release/check.py

# A machine without a C compiler: pip fetches one for the build.
source-install:
	rm -rf build/source && $(PYTHON) -m venv build/source
	env -u CC PATH=$(abspath build/source/bin) build/source/bin/python -m pip install -q --no-deps .
	cd build && env PYTHONPATH= source/bin/python -c "import importlib.util, pathlib; \
	print(*(p.name for p in (pathlib.Path(importlib.util.find_spec('caffnet').origin).parent / '_kernel').glob('lib*')))"

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

$(VENV)/.docs: $(VENV)/.demo
	$(BIN)/python -m pip install -q --group docs
	touch $@
