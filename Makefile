# Every task of the project. `make` lists them; CI runs the same recipes through .ci/run.
# The comment behind a target is its help, so it says only what the target does for the reader.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
# Avoid -p: without it cargo builds each dependency once, for the whole workspace.
CARGO ?= cargo
SEEDS ?= 1000
KILLS ?= 400
SECS ?= 600
INPUTS ?= 10000000
VENV := .venv
# `cargo test` with a time limit for each test, so that a hanging test fails alone. Not for documentation tests: with a
# runner, rustdoc would run all examples in one process.
LIMITED := --config 'target."cfg(all())".runner = ["$(PYTHON)", "$(CURDIR)/.ci/limited"]'

.PHONY: help demo test test-python test-servers miri sim mutants crash site bench-engine bench-growth bench-lifecycle bench-local bench-python bench-workers lint fmt deny tools clean prereqs servers develop
.PHONY: external test-link chaos soak fuzz supply bench-peers bench-peer-workers test-page fit-page wheel bench-contention bench-fit bench-spark bench-hosts

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

demo: develop  ## Watch producers and workers on a queue file: one job fails, one worker is killed, both jobs run again
	@$(VENV)/bin/python -m bucketq.demo $(ARGS)

test: prereqs $(VENV)/.ready servers  ## Run every test of the project; installs the packages it needs on a fresh machine
	$(VENV)/bin/typos
	$(CARGO) $(LIMITED) test --locked --workspace --no-fail-fast --lib --bins --tests
	$(CARGO) test --locked --workspace --no-fail-fast --doc
	@$(MAKE) test-python
	.ci/page

test-python: develop servers  ## Build the Python package and run its tests; ARGS goes to pytest
	$(VENV)/bin/pytest $(ARGS)

test-link: develop servers  ## Run the Python tests with a queue file in a directory or on S3 while another process leads on it
	BUCKETQ_TEST_LINK=1 $(VENV)/bin/pytest --ignore tests/python/spark $(ARGS)

external: develop  ## Run Kombu's own tests through the plug-in for Celery; downloads them; ARGS goes to pytest
	$(VENV)/bin/python .ci/external $(ARGS)

develop: prereqs $(VENV)/.ready  ## Build the Python package (dev profile, some minutes at first) into .venv
	@echo 'building the Python package: some minutes at first, seconds later'
	VIRTUAL_ENV='$(CURDIR)/$(VENV)' $(VENV)/bin/maturin develop --quiet --uv --locked

test-page:  ## Test the fit calculator's model and its page in Chromium; installs packages if it can, names the tests it skips
	.ci/page

fit-page:  ## Build the fit calculator, fit-calculator/dist/index.html, and put it into the package; needs Node 20 and npm
	.ci/page build

wheel: prereqs $(VENV)/.ready fit-page  ## Build the wheel with the fit calculator's page in it, into dist/
	$(VENV)/bin/maturin build --release --out dist

site: $(VENV)/site/.ready  ## Build the documentation site, target/site/index.html; check its links and anchors, and open it in Chromium
	NO_MKDOCS_2_WARNING=1 $(VENV)/site/bin/mkdocs build --strict --config-file .mkdocs.yml
	@.ci/site-page
	@echo 'built target/site/index.html'

test-servers: prereqs  ## Run the tests against real S3 servers behind a faulty network; names missing servers
	@.ci/tools all || true
	$(CARGO) $(LIMITED) test --locked --test servers --no-fail-fast

miri: prereqs  ## Run the page store's tests under Miri; prints a note when no nightly toolchain has it
	@.ci/miri

sim: prereqs  ## Run the simulation over SEEDS seeds (default 1000); JSON on the last line
	$(CARGO) run --locked --bin sim -- --seeds $(SEEDS)

mutants: prereqs  ## Break each rule of the engine in a copy, run the tests that must notice; VARIANTS=name,name picks some; JSON on the last line
	@.ci/mutants run --variants '$(VARIANTS)' $(ARGS)

crash: prereqs  ## Kill KILLS processes at work (default 400), in a directory and on S3 servers; JSON on the last line
	$(CARGO) run --locked --bin crash -- --kills $(KILLS) $(if $(SEED),--seed $(SEED))

chaos: develop  ## Run real processes on a real server under every kind of fault, for SECS seconds (default 600); JSON on the last line
	@.ci/tools minio toxiproxy faketime || true
	$(CARGO) build --locked --bin chaos
	mutants=$$(.ci/mutants build chaos); \
	$(VENV)/bin/python tests/chaos/run.py "$${CARGO_TARGET_DIR:-target}/debug/chaos" "$$mutants" --seconds $(SECS) $(if $(SEED),--seed $(SEED)) $(ARGS)

soak: develop  ## Run a steady load for SECS seconds (default 1800): memory, file, bucket and requests must be flat, times must not grow; JSON on the last line
	@.ci/tools minio || true
	$(CARGO) build --locked --bin soak --bin counting
	$(VENV)/bin/python tests/chaos/soak.py "$${CARGO_TARGET_DIR:-target}/debug" --seconds $(if $(filter file,$(origin SECS)),1800,$(SECS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

fuzz: prereqs  ## Fuzz every decoder, URLs and settings with INPUTS inputs (default 10,000,000); JSON on the last line
	$(CARGO) run --locked --bin fuzz -- --inputs $(INPUTS) $(if $(SEED),--seed $(SEED)) $(ARGS)

bench-engine: prereqs  ## Measure the engine, optimised build; JSON on the last line, see benches/README.md
	$(CARGO) run --locked --release -p bucketq-benches --bin engine

bench-growth: prereqs  ## Measure opening, bases, shrinking, a million jobs, contention; JSON on the last line
	$(CARGO) run --locked --release -p bucketq-benches --bin growth

bench-lifecycle: prereqs  ## Measure the cost of groups, dedup keys, policies and the archive, optimised build; JSON on the last line
	@for bin in lifecycle archive; do $(CARGO) run --locked --release -p bucketq-benches --bin $$bin | tail -n 1; done \
		| $(PYTHON) -c 'import json, sys; print(json.dumps({k: v for line in sys.stdin for k, v in json.loads(line).items()}))'

bench-local: prereqs  ## Measure Local mode on this machine's disk, optimised build; JSON on the last line
	$(CARGO) run --locked --release -p bucketq-benches --bin local

bench-python: prereqs $(VENV)/.ready  ## Measure the overhead of Python over the engine, optimised build; JSON on the last line
	VIRTUAL_ENV='$(CURDIR)/$(VENV)' $(VENV)/bin/maturin develop --quiet --uv --locked --release
	$(CARGO) build --locked --release -p bucketq-benches --bin callers
	$(VENV)/bin/python benches/python.py "$${CARGO_TARGET_DIR:-target}/release/callers" $(ARGS)

bench-workers: prereqs $(VENV)/.ready  ## Measure workers, tasks and child processes behind 25 ms, optimised build; JSON on the last line
	VIRTUAL_ENV='$(CURDIR)/$(VENV)' $(VENV)/bin/maturin develop --quiet --uv --locked --release
	$(VENV)/bin/python benches/workers.py $(ARGS)

bench-spark: prereqs $(VENV)/.ready  ## Measure Spark on an archive of five million jobs, optimised build, half an hour; needs Java 17; JSON on the last line
	VIRTUAL_ENV='$(CURDIR)/$(VENV)' $(VENV)/bin/maturin develop --quiet --uv --locked --release
	$(VENV)/bin/python benches/spark.py $(ARGS)

bench-peers: prereqs $(VENV)/.ready  ## Compare with other queues, a quarter of an hour; ARGS=--quick takes some minutes; JSON on the last line
	@.ci/tools minio versitygw toxiproxy || true
	@.ci/peers $(VENV)/peers
	$(CARGO) build --locked --release -p bucketq-benches --bin counting --bin peer
	$(VENV)/peers/bin/python benches/peers/run.py "$${CARGO_TARGET_DIR:-target}/release" $(ARGS)

bench-peer-workers: prereqs $(VENV)/.ready  ## Compare workers with those of other task queues, ten minutes; ARGS=--quick takes three; JSON on the last line
	@.ci/tools minio toxiproxy || true
	@.ci/peers $(VENV)/peer-workers workers
	$(VENV)/peer-workers/bin/python benches/peers/workers.py $(ARGS)

bench-contention: prereqs  ## Race several writers of one queue file, optimised build; JSON on the last line
	$(CARGO) run --locked --release -p bucketq-benches --bin contention

bench-fit: prereqs  ## Compare the fit model with the engine on MinIO behind slow networks, seven minutes; JSON on the last line
	$(CARGO) run --locked --release -p bucketq-benches --bin fit -- --svg docs/fit-measured.svg

bench-hosts: prereqs $(VENV)/.ready  ## Measure several processes of one host on one queue file, optimised build, six minutes; JSON on the last line
	@.ci/tools gofakes3 toxiproxy || true
	VIRTUAL_ENV='$(CURDIR)/$(VENV)' $(VENV)/bin/maturin develop --quiet --uv --locked --release
	$(CARGO) run --locked --release -p bucketq-benches --bin hosts -- --python '$(CURDIR)/$(VENV)/bin/python' $(ARGS)

lint: prereqs $(VENV)/.ready develop  ## Check formatting, clippy, rustdoc, Python's types and spelling; changes nothing
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) clippy --locked -p bucketq --no-default-features -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --workspace --no-deps --quiet
	$(VENV)/bin/ruff check --quiet python tests/python tests/chaos benches
	$(VENV)/bin/ruff format --quiet --check python tests/python tests/chaos benches
	$(VENV)/bin/pyright --project .pyright.json
	MYPY_CACHE_DIR=$(VENV)/mypy $(VENV)/bin/stubtest bucketq._native
	$(VENV)/bin/typos

fmt: $(VENV)/.ready  ## Format the code in place
	$(CARGO) fmt --all
	$(VENV)/bin/ruff check --quiet --fix-only python tests/python tests/chaos benches
	$(VENV)/bin/ruff format --quiet python tests/python tests/chaos benches

deny:  ## Check dependencies for vulnerabilities, licences and sources; needs cargo-deny and the network
	@command -v cargo-deny >/dev/null || { echo 'missing: cargo-deny; run: cargo install --locked cargo-deny'; exit 1; }
	cargo-deny --config .deny.toml check

tools:  ## Install every test server into .tools with Go, Node and Python; MinIO alone takes minutes
	.ci/tools all

supply: prereqs $(VENV)/.ready  ## List licences and the contents of sdist and wheel, run the installed auditors; JSON on the last line
	@$(VENV)/bin/python .ci/supply

clean:  ## Remove everything built or installed here: build output, .venv and .tools
	$(CARGO) clean
	rm -rf $(VENV) .tools dist python/bucketq/*.so python/bucketq/fit.html fit-calculator/node_modules fit-calculator/dist fit-calculator/artefacts

prereqs:  ## Name each missing tool of this machine, one line each
	@PYTHON='$(PYTHON)' .ci/check-prereqs

servers:  ## Install the S3 servers that every test run starts, gofakes3, moto and s3rver; names missing tools
	@.ci/tools gofakes3 moto s3rver || true

# Rebuilt when the pinned versions change.
$(VENV)/.ready: .ci/requirements.txt pyproject.toml uv.lock
	@PYTHON='$(PYTHON)' .ci/check-prereqs
	$(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r .ci/requirements.txt
	VIRTUAL_ENV='$(CURDIR)/$(VENV)' $(VENV)/bin/uv sync --quiet --active --locked --inexact --all-extras --no-install-project
	@touch $@

# The package itself is not installed: the site is made from its sources.
$(VENV)/site/.ready: $(VENV)/.ready
	UV_PROJECT_ENVIRONMENT='$(CURDIR)/$(VENV)/site' $(VENV)/bin/uv sync --quiet --locked --no-dev --group site --no-install-project
	@touch $@
