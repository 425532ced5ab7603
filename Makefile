# The usual jobs by name; `make help` lists them. Each does the set-up it needs
# (scripts/setup.sh) and is quick when run again.
BUILD ?= build
PYTHON ?= python3

venv := $(BUILD)/venv
stamp := $(BUILD)/setup.stamp
python := $(abspath $(venv))/bin/python
export TIDE_BUILD := $(abspath $(BUILD))

.PHONY: help demo test lint bench fuzz build clean
.DEFAULT_GOAL := help

help: ## show this list
	@awk -F ': .*## ' '/^[a-z]+: .*##/ {printf "make %-7s%s\n", $$1, $$2}' \
	  Makefile

demo: build ## train a small transformer on 4 ranks, stock FSDP2 then tide
	@$(python) examples/demo.py

test: build ## run every test that needs no GPU
	@$(python) scripts/run_tests.py

lint: build ## check format, layers, sizes, texts and docs
	@$(python) scripts/lint.py

bench: build ## time both collectives against the flat path
	@$(python) bench/run.py

fuzz: build ## fuzz layouts, plans and verifiers, SECONDS=60 each
	@fuzz/fuzz.sh $(BUILD) $(SECONDS)

build: $(BUILD)/build.ninja ## compile the library, the tools and the package
	@cmake --build $(BUILD)

clean: ## remove the build folder, set-up included
	rm -rf $(BUILD)

$(BUILD)/build.ninja: $(stamp)
	@cmake -S . -B $(BUILD) -G Ninja -DPython_EXECUTABLE=$(python) \
	  --log-level=WARNING

$(stamp): scripts/setup.sh requirements.txt requirements-dev.txt
	@scripts/setup.sh $(venv) $(PYTHON)
	@touch $@
