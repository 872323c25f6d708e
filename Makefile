# One virtual environment, made when it is missing or when its description changed.
PYTHON ?= python3
comma  := ,
VENV   := .venv
BIN    := $(VENV)/bin
TEST   := $(VENV)/.installed-test
DOCS   := $(VENV)/.installed-docs
BROWSER := $(VENV)/.installed-browser
# A file stays on one worker, which compiles its shapes once. tests/conftest.py puts the longest files
# first; pytest-xdist would otherwise start with those that have the most tests.
SPREAD := -n 2 --dist loadfile --no-loadscope-reorder
PYTEST := $(BIN)/python -m pytest $(SPREAD)
# The rooms whose results depend on the precision of their input.
FLOAT32 := $(addprefix tests/,core targets families linalg objective solvers engine diagnostics \
             inference glm vae interop)
N      ?= 20

.DEFAULT_GOAL := test
.PHONY: run test test-browser test-browser-if-any test-seeds test-slow bench docs lint clean

# What pip says is kept in a log and shown only when the installation fails.
define install
	@echo "Installing curvi[$(1)] into $(VENV)"
	@$(BIN)/python -m pip install --disable-pip-version-check -e ".[$(1)]" -c constraints.txt \
	  > $(VENV)/install.log 2>&1 || { cat $(VENV)/install.log >&2; exit 1; }
	@touch $@
endef

$(TEST): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(call install,test)

$(DOCS): $(TEST)
	$(call install,test$(comma)docs)

$(BROWSER): $(TEST)
	$(call install,test$(comma)browser)

run: $(TEST)  ## fit the bundled example
	@$(BIN)/curvi fit

test: lint  ## lint, the suite in float64, and in float32 what depends on precision
	CURVI_TEST_DTYPE=float64 $(PYTEST)
	CURVI_TEST_DTYPE=float32 $(PYTEST) $(FLOAT32)

test-seeds: $(TEST)  ## the float64 suite with N seeds: make test-seeds N=20
	$(BIN)/python -m tests.many_seeds $(N) -- $(SPREAD)

test-slow: $(TEST)  ## the tests that take minutes
	XLA_FLAGS= CURVI_TEST_DTYPE=float64 $(PYTEST) -m slow
	XLA_FLAGS= CURVI_TEST_DTYPE=float32 CURVI_TEST_WHOLE=1 $(PYTEST) $(FLOAT32)
	XLA_FLAGS= CURVI_TEST_DTYPE=float64 CURVI_TEST_EXAMPLES=20 $(PYTEST) tests/objective tests/paper/reference tests/linalg tests/families

test-browser: $(BROWSER)  ## the report in Chromium, which has to be installed; skipped where it is not
	$(BIN)/python -m pytest -m browser tests/browser

test-browser-if-any: $(TEST)  ## the same, or a sentence where there is no browser or driver for it
	@if ! command -v chromium > /dev/null 2>&1; then \
	  echo "Chromium is not installed: the tests in a browser are left out."; \
	elif ! $(MAKE) --silent $(BROWSER) > /dev/null 2>&1; then \
	  echo "Playwright cannot be installed: the tests in a browser are left out."; \
	else $(MAKE) --no-print-directory test-browser; fi

lint: $(TEST)  ## style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(TEST)  ## every benchmark; one of them: make bench NAMES=name
	$(BIN)/python -m benchmarks $(NAMES)

docs: $(DOCS)  ## the manual, in docs/_build/html: its examples run, and a warning is an error
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html

clean:  ## everything that can be made again
	rm -rf $(VENV) docs/_build docs/api docs/gallery docs/sg_execution_times.rst build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.*
	find src tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +
