# The machine's own Python: it makes .venv, and `make gpu` runs with it.
PYTHON ?= python3
SUITE ?= norms
# What JupyterLab is told beside the folder, as ARGS="--no-browser --port 9000".
ARGS ?=

VENV := .venv
# Named by its content, so that a fresh checkout of unchanged pins installs nothing again.
INSTALLED := $(VENV)/requirements-$(shell sha256sum requirements.txt | cut -c1-16)
RUN := PYTHONPATH=. $(VENV)/bin/python

.PHONY: help work lab book site test serve lint exercises bench gpu clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

lab: $(INSTALLED) ## open your own copies of the exercises, in work/, in JupyterLab
	@$(RUN) -m kernels.grading.working_copies --lab $(ARGS)

work: $(INSTALLED) ## put your own copies of the exercises into work/ (none is overwritten)
	@$(RUN) -m kernels.grading.working_copies

book: $(INSTALLED) ## execute the changed chapters and build the HTML
	@$(RUN) book/tools/build.py

site: book ## build the book and lay out the folder to publish, _build/site
	@$(RUN) -m book.tools.site

test: $(INSTALLED) ## check all that must hold: code, exercises, notebooks, book
	@$(RUN) -m tests.steps

serve: book ## build the book and serve it at http://localhost:8000
	@$(RUN) -m http.server --bind localhost --directory _build/html 8000

lint: $(INSTALLED) ## ruff and mypy
	@$(RUN) -m ruff check .
	@$(RUN) -m mypy

exercises: $(INSTALLED) ## put the first cell into every notebook, write exercises/ from solutions/
	@$(RUN) -m kernels.grading.generate --unanswered
	@$(RUN) -m book.tools.setup_cell --write
	@$(RUN) -m kernels.grading.generate

bench: $(INSTALLED) ## measure a suite on this machine's GPU: make bench SUITE=norms
	@$(RUN) -m kernels.lab bench $(SUITE)

gpu: ## GPU tests, their proofs, three models and every suite with the machine's own Python, into one archive
	@PYTHONPATH=. $(PYTHON) -m kernels.lab gpu

clean: ## delete what was built (.venv and work/ stay)
	rm -rf _build .mypy_cache .pytest_cache .ruff_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

$(INSTALLED):
	@command -v $(PYTHON) > /dev/null || { echo "$(PYTHON) is not on this machine: install Python 3.11 or newer, or name one with make PYTHON=..."; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, and $(PYTHON) is $$($(PYTHON) -V 2>&1): name another with make PYTHON=..."; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2> /dev/null || { echo "$(PYTHON) lacks venv or pip: install them (on Debian and Ubuntu: apt install python3-venv)"; exit 2; }
	@echo "Installing requirements.txt into $(VENV): minutes, and gigabytes where torch is new to the machine"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(VENV)/bin/python -m pip install -qq --disable-pip-version-check -r requirements.txt
	@touch $@
