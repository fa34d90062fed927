# `make demo` shows the tool at work, `make test` checks it; both make .venv on first use.

PYTHON ?= $(shell command -v python3.11 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
# a plain "torch" would bring several GB of CUDA packages; this pin is a CPU build for CI and demo
TORCH ?= torch==2.13.0
# for the tests alone
TENSORFLOW ?= tensorflow-cpu==2.21.0
TRAINERS := transformers accelerate peft lightning opentelemetry-sdk prometheus-client "mcp>=2.0"
# Composer is for an older torch, and brings a torchvision: in an environment of its own
COMPOSER := mosaicml torchvision==0.28.0
OF_COMPOSER := mosaicml-cli tqdm psutil "torchmetrics<1.7.5" torch_optimizer coolname tabulate py-cpuinfo \
    "pillow<12" importlib-metadata
NOTEBOOK := nbclient nbformat ipykernel
# what every torch depends on, but for CUDA
OF_TORCH := filelock typing-extensions sympy networkx jinja2 fsspec setuptools
PYTEST := -m pytest --tb=short -n auto --dist loadfile --no-loadscope-reorder
# what is imported is compiled then: of the large packages that is a small part
PIP := -m pip install --quiet --disable-pip-version-check --no-compile
unexport PYTHONDONTWRITEBYTECODE
# the line tracer is another one from 3.12 on, and the same on each of them; its tests need no torch.
# make test takes the newest, make test-3.12 another
python = $(shell python$(1) -c 'import sys; print(sys.executable)' 2>/dev/null \
    || ls -d $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$(1).*/bin/python$(1) 2>/dev/null | tail -n 1)
NEWER := $(foreach version,3.12 3.13 3.14,$(if $(call python,$(version)),$(version)))
# what only counts and renders is the same code on each of them: it runs on the newest alone
NEWEST := $(lastword $(NEWER))
ON_NEWEST := $(if $(NEWEST),$(addprefix tests/unit/,render records recording))

# each in a process of its own: every look at the heap is as long as what that has imported
SINGLE := tests/alone/test_wheel.py tests/unit tests/unit/heap tests/unit/frameworks \
    $(filter-out %/test_wheel.py,$(wildcard tests/alone/test_*.py)) \
    $(filter-out %/test_composer.py,$(wildcard tests/trainers/test_*.py))
tests/unit: WITHOUT := $(patsubst %,--ignore=%,$(filter tests/unit/%,$(SINGLE)) $(ON_NEWEST))

PURE := integrations leaks lines planning recording records render test_units.py

.PHONY: demo test quick lint pytest bench wheel site clean test-torch test-composer test-cuda \
    $(NEWER:%=test-%) $(SINGLE) tests/torch tests/tensorflow

demo: $(VENV)/.ready
	$(BIN)/python samples/cifar10.py

# four at a time, as some only wait, as TensorFlow's tests for a refused request, which it tries again
# for ten seconds; first what takes longest
test:
	$(MAKE) -j 4 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) \
	    $(VENV)/.ready $(VENV)/.frameworks $(NEWEST:%=test-%) lint site pytest $(SINGLE)

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# what needs no framework: for every save
quick: $(VENV)/.ready
	$(BIN)/python $(PYTEST) $(PURE:%=tests/unit/%)

pytest: tests/torch tests/tensorflow

tests/torch: $(VENV)/.frameworks
	$(BIN)/python $(PYTEST) tests/cli tests/torch tests/gpu

tests/tensorflow: $(VENV)/.frameworks
	$(BIN)/python $(PYTEST) tests/tensorflow

$(SINGLE): $(VENV)/.frameworks
	$(BIN)/python -m pytest --tb=short $@ $(WITHOUT)

$(NEWER:%=test-%): test-%: $(VENV)-%/.ready
	$(VENV)-$*/bin/python -m pytest tests/unit/heap
	$(VENV)-$*/bin/python -m pytest tests/unit/lines $(if $(filter $*,$(NEWEST)),$(ON_NEWEST))
	$(if $(filter 3.14,$*),$(VENV)-$*/bin/python -m pytest tests/cli/test_top.py -k not_prepared)

# every public call once, with one torch in an environment of its own: make test-torch VERSION=2.8.0
test-torch:
	$(if $(VERSION),,$(error which torch? make test-torch VERSION=2.8.0))
	$(MAKE) $(VENV)-torch-$(VERSION)/.ready
	$(VENV)-torch-$(VERSION)/bin/python -m pytest --tb=short tests/smoke

# the parts for CUDA with torch's own allocator and no card; the build of torch takes 5 GB
CUDA_TORCH := torch==2.14.1
test-cuda: $(VENV)-cuda/.ready
	$(VENV)-cuda/bin/python tests/gpu/stand_in/build.py build/stand_in \
	    $(VENV)-cuda/bin/python -m pytest --tb=short tests/gpu

# the callback for Composer, with Composer
test-composer: $(VENV)-composer/.ready
	$(VENV)-composer/bin/python -m pytest --tb=short tests/trainers/test_composer.py

# make bench PAGE=docs/cost.md puts the table of ratios into the page
bench: $(VENV)/.ready
	$(BIN)/python -m tests.benchmarks $(PAGE)

# build/site: the documentation; a warning is an error
site: $(VENV)-site/.ready
	NO_MKDOCS_2_WARNING=1 $(VENV)-site/bin/python -m mkdocs build --quiet --strict --site-dir build/site

# dist/: a wheel for each machine of MACHINES with its native parts in it, and a pure one.
# For another machine than this one it takes a cross compiler: g++-aarch64-linux-gnu
MACHINES ?= x86_64 aarch64
WHEEL := -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
wheel: $(VENV)/.frameworks
	rm -rf build dist
	$(foreach machine,$(MACHINES),$(BIN)/python packaging/prebuilt.py build/$(machine) --machine $(machine) && \
	    TENSORLENS_PREBUILT=build/$(machine) TENSORLENS_PLATFORM=manylinux_2_34_$(machine) \
	    $(BIN)/python $(WHEEL) &&) true
	$(BIN)/python $(WHEEL)

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) "$(TORCH)" -e ".[test]"
	touch $@

# what tests run under besides torch; imported once, before many processes side by side would each
# compile it
$(VENV)/.frameworks: $(VENV)/.ready
	$(BIN)/python $(PIP) "$(TORCH)" "$(TENSORFLOW)" $(TRAINERS) $(NOTEBOOK)
	TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -c "import torch._dynamo, tensorflow, keras"
	touch $@

$(VENV)-composer/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)-composer
	$(VENV)-composer/bin/python $(PIP) "$(TORCH)"
	$(VENV)-composer/bin/python $(PIP) -e . $(OF_COMPOSER) pytest
	$(VENV)-composer/bin/python $(PIP) --no-deps $(COMPOSER)
	touch $@

$(VENV)-cuda/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)-cuda
	$(VENV)-cuda/bin/python $(PIP) $(CUDA_TORCH) nvidia-cuda-crt -e . numpy pytest
	touch $@

$(VENV)-site/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)-site
	$(VENV)-site/bin/python $(PIP) mkdocs-material "mkdocstrings[python]" mkdocs-jupyter
	touch $@

$(VENV)-%/.ready: pyproject.toml
	$(call python,$*) -m venv $(VENV)-$*
	$(VENV)-$*/bin/python $(PIP) -e . pytest pandas
	touch $@

# without the packages of CUDA: stand-ins let torch be imported without them
$(VENV)-torch-%/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)-torch-$*
	$(VENV)-torch-$*/bin/python $(PIP) --no-deps "torch==$*"
	$(VENV)-torch-$*/bin/python $(PIP) -e . $(OF_TORCH) numpy pandas pytest
	$(VENV)-torch-$*/bin/python tests/smoke/cuda_stand_ins.py
	touch $@

clean:
	rm -rf build dist $(VENV) $(VENV)-site $(VENV)-composer $(VENV)-cuda $(VENV)-3.* $(VENV)-torch-*
