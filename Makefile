# `make` lists the targets. PYTHON picks the interpreter (3.10 or newer); everything installs into .venv and .venv-test.

PYTHON ?= python3

DEMO := .venv
TEST := .venv-test
DOCS := .venv-docs
PIP_FLAGS := --quiet --disable-pip-version-check
# What `make audit` asks of cargo-deny; `bans licenses sources` needs no network.
AUDIT ?= advisories bans licenses sources
AUDITED := build demo docs test mutants vllm
RUST_SOURCES := Cargo.toml Cargo.lock $(shell find crates -name target -prune -o \( -name '*.rs' -o -name Cargo.toml \) -print)
BUILD_SOURCES := $(RUST_SOURCES) pyproject.toml

# The interpreter that PyO3 is built against decides its cache key: without one the abi3 build is the same for all.
export PYO3_NO_PYTHON := 1
# The module is loaded by an interpreter and never links one; maturin says so by itself, plain cargo must be told.
export PYO3_BUILD_EXTENSION_MODULE := 1
export CARGO_TERM_PROGRESS_WHEN := never

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(DEMO)/built ## Build, then move KV cache through NIXL between processes that lay it out differently
	$(DEMO)/bin/python -m kvreshard.demo

.PHONY: test
test: rust-checks python-checks ## Every check that a change must pass: Rust, types, style, tests with real NIXL

.PHONY: rust-checks
rust-checks: tools-present
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	@if cargo nextest --version >/dev/null 2>&1; then \
	  set -x; cargo nextest run --locked --no-fail-fast && cargo test --locked --doc; \
	else \
	  set -x; cargo test --locked --no-fail-fast; \
	fi
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps

.PHONY: python-checks
python-checks: $(TEST)/built
	$(TEST)/bin/ruff check
	$(TEST)/bin/ruff format --check
	$(TEST)/bin/mypy
	$(TEST)/bin/basedpyright --level error
	$(TEST)/bin/python -m pytest

.PHONY: test-vllm
test-vllm: $(TEST)/built $(TEST)/with-vllm ## The vLLM connector on real vLLM, beside the stock one, and vLLM's own tests
	KVRESHARD_TEST_VLLM=1 $(TEST)/bin/python -m pytest tests/vllm
	$(TEST)/bin/python -m tests.vllm.upstream $(TEST)/upstream

.PHONY: lint
lint: $(TEST)/built ## Style and types only, with what can be mended mended
	cargo fmt --all
	$(TEST)/bin/ruff check --fix
	$(TEST)/bin/ruff format
	cargo clippy --locked --workspace --all-targets -- -D warnings
	$(TEST)/bin/mypy
	$(TEST)/bin/basedpyright --level error

.PHONY: test-pictures
test-pictures: $(TEST)/built ## The drawings in a headless Chromium, which must be on PATH
	@command -v chromium chromium-browser google-chrome >/dev/null || { echo "error: no Chromium on PATH: install Debian's package chromium" >&2; exit 1; }
	$(TEST)/bin/python -m pytest tests/test_picture.py tests/test_pictures.py

.PHONY: docs
# Not --quiet: that drops the warnings which strict mode counts.
docs: $(DOCS)/built ## Build the documentation into target/site, Rust's in target/site/rust; a broken link or an unexplained name fails
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --strict
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps -p kvreshard
	rm -rf target/site/rust && cp -r target/doc target/site/rust && test -f target/site/rust/kvreshard/index.html
	@echo "target/site/index.html"

.PHONY: wheels
wheels: $(DEMO)/installed ## A wheel for this machine (one for all Pythons from 3.10) and the source distribution, in dist/
	rm -rf dist
	$(DEMO)/bin/maturin build --release --locked --out dist
	$(DEMO)/bin/maturin sdist --out dist

.PHONY: bench
bench: $(TEST)/built ## Measure the planner, its Python surface and NIXL; one table, beside vLLM's own code where it is installed
	cargo bench --locked -p kvreshard --bench planner
	$(TEST)/bin/python -m benches

.PHONY: bench-guard
bench-guard: tools-present ## Hold instruction counts of fixed workloads against benches/instructions.toml (needs valgrind)
	@command -v valgrind >/dev/null || { echo "error: valgrind is missing: apt-get install valgrind" >&2; exit 1; }
	$(PYTHON) benches/guard.py $(GUARD_FLAGS)

.PHONY: test-gpu
test-gpu: $(TEST)/built ## The tests that need a GPU; ranks are spread over all that are visible
	$(TEST)/bin/python -m pytest tests/gpu tests/test_connector_device.py

.PHONY: bench-gpu
bench-gpu: $(TEST)/built ## Measure kernels on a GPU and transfers between all visible ones, every byte checked
	$(TEST)/bin/python -m benches.gpu_kernels
	$(TEST)/bin/python -m benches.gpu_transfers

# Of a fuzzing run the planner is to take the time, not the fuzzer. Not reported to it are comparisons, and it weighs no features;
# memory is checked as ever, but freed memory is not kept for long, nor are frames of functions that have returned: nothing here is unsafe.
FUZZ_ASAN := malloc_context_size=0:max_malloc_fill_size=0:quarantine_size_mb=1:thread_local_quarantine_size_kb=64:detect_stack_use_after_return=0
FUZZ_USUAL := -entropic=0 -len_control=0 -max_len=256 -reduce_inputs=0 -detect_leaks=0 -timeout=20 -rss_limit_mb=2048 -print_final_stats=1

.PHONY: fuzz
fuzz: tools-present ## Fuzz every target for SECONDS each, 60 where not given (needs cargo-fuzz; any toolchain will do)
	@cargo fuzz --version >/dev/null 2>&1 || { echo "error: cargo-fuzz is missing: cargo install cargo-fuzz" >&2; exit 1; }
	@set -e; cd crates/kvreshard; export RUSTC_BOOTSTRAP=1 ASAN_OPTIONS=$(FUZZ_ASAN); \
	for target in $(or $(TARGETS),decode parse plan request); do \
	  mkdir -p fuzz/corpus/$$target; (set -x; cargo fuzz run --no-trace-compares $$target fuzz/corpus/$$target fuzz/seeds/$$target -- \
	    $(FUZZ_USUAL) -max_total_time=$(or $(SECONDS),60) $(FUZZ_FLAGS)); \
	done

# For each module the tests that fail within seconds for nearly every fault in it, and those that are held against what these miss.
# What was caught is not run again, so that a run goes on where another stopped; `make clean` forgets.
PLAN_THEN := --test attacks --test check --test parallel --test plan --test plan_order --test plan_properties --test plan_soak
MUTANTS_wire := --test wire
MUTANTS_wire_then := --test attacks
MUTANTS_ring := --test ring
MUTANTS_ring_then := --lib --test ring_random
MUTANTS_lower := --test lowering
MUTANTS_lower_then := --lib --test parallel --test plan_properties --test plan_soak
MUTANTS_plan := --lib
MUTANTS_plan_then := --test lowering $(PLAN_THEN)
MUTANTS_verify := --lib
MUTANTS_verify_then := --test lowering $(PLAN_THEN)

.PHONY: mutants
mutants: tools-present ## Change the Rust code in one place after another and see that a test fails: MODULES (wire ring lower plan verify), each in target/mutants-MODULE (needs cargo-mutants)
	@cargo mutants --version >/dev/null 2>&1 || { echo "error: cargo-mutants is missing: cargo install --locked cargo-mutants" >&2; exit 1; }
	@set -e; mkdir -p target; export CARGO_TARGET_DIR=$(CURDIR)/target/mutants CARGO_PROFILE_TEST_OPT_LEVEL=0 CARGO_PROFILE_TEST_DEBUG=0 \
	  CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0; \
	export PROPTEST_MAX_SHRINK_ITERS=0 PROPTEST_DISABLE_FAILURE_PERSISTENCE=1 SOAK_SHRINK=0 SOAK_PAIRS=100; \
	run() { module=$$1; shift; (set -x; cargo mutants -p kvreshard -f "**/src/$$module.rs" -f "**/src/$$module/**" --timeout 20 --iterate \
	  -o target/mutants-$$module $(MUTANTS_FLAGS) $$(printf -- '--cargo-arg=%s ' --locked $$*)) || \
	  case $$? in 2|3) ;; *) exit 1 ;; esac; }; \
	$(foreach module,$(or $(MODULES),wire ring lower plan verify),run $(module) $(MUTANTS_$(module)); run $(module) $(MUTANTS_$(module)_then);) \
	cat target/mutants-*/mutants.out/missed.txt

MUTMUT := target/mutants-python/tool
$(MUTMUT)/installed: requirements/mutants.txt | $(TEST)/installed
	rm -rf $(MUTMUT)
	$(TEST)/bin/python -m pip install $(PIP_FLAGS) --no-deps --target $(MUTMUT) -r requirements/mutants.txt
	@touch $@

.PHONY: mutants-python
mutants-python: $(TEST)/built $(MUTMUT)/installed ## Change the connector's Python likewise: MODULES, SAMPLE of each at random from SEED; AGAIN=1 for what was missed
	$(TEST)/bin/python -m tests.mutants $(MODULES) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) $(if $(AGAIN),--again)

.PHONY: soak-plan
soak-plan: tools-present ## Plan PAIRS random pairs (100,000 where not given) from SEED on, against brute force; a failure is shrunk and kept
	SOAK_PAIRS=$(or $(PAIRS),100000) SOAK_SEED=$(or $(SEED),$(shell date +%s)) \
	  cargo test --locked -p kvreshard --test plan_soak -- --nocapture

.PHONY: audit
audit: ## Licences, sources and known faults of everything that is built or installed (needs cargo-deny, and a network for its advisories)
	@cargo deny --version >/dev/null 2>&1 || { echo "error: cargo-deny is missing: cargo install --locked cargo-deny" >&2; exit 1; }
	cargo deny --locked --workspace check $(AUDIT)
	cargo deny --locked --manifest-path crates/kvreshard/fuzz/Cargo.toml --config deny.toml check $(AUDIT)
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install $(PIP_FLAGS) pip-audit
	for list in $(AUDITED); do .venv-audit/bin/pip-audit --strict --disable-pip --no-deps -r requirements/$$list.txt || exit 1; done

.PHONY: msrv
msrv: ## Build and test with the oldest Rust that is supported (needs rustup and its 1.85.0)
	cargo +1.85.0 test --locked --workspace --target-dir target/msrv

.PHONY: soak
soak: $(TEST)/built ## Six ranks, random transfers and faults for SECONDS (600), every byte checked; SEED repeats a run
	$(TEST)/bin/python -m tests.soak --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

.PHONY: soak-leaks
soak-leaks: $(TEST)/built ## COUNT (10000) connects, transfers, disconnects, and a tenth as many connectors: what is held meanwhile
	$(TEST)/bin/python -m tests.soak.leaks --count $(or $(COUNT),10000) --connectors $$(( $(or $(COUNT),10000) / 10 )) $(LEAKS_FLAGS)

.PHONY: clean
clean: ## Remove everything that was built or installed here
	rm -rf $(DEMO) $(TEST) $(DOCS) .venv-audit target dist crates/kvreshard/fuzz/target python/kvreshard/_core.*.so
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find python tests -name __pycache__ -prune -exec rm -rf {} +

.PHONY: tools-present
tools-present:
	@command -v cargo >/dev/null || { echo "error: cargo is missing: install a Rust toolchain, 1.85 or newer" >&2; exit 1; }
	@command -v cc >/dev/null || { echo "error: cc is missing: install a C compiler (gcc or clang), Rust links with it" >&2; exit 1; }

# $(call make-venv,FOLDER): an empty environment, or an error that says what is missing.
define make-venv
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) is missing: install Python 3.10 or newer, or pass PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "error: $$($(PYTHON) --version) is too old: kvreshard needs Python 3.10 or newer (pass PYTHON=...)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "error: $(PYTHON) cannot make virtual environments: install its venv package (python3-venv on Debian and Ubuntu)" >&2; exit 1; }
	rm -rf $(1)
	$(PYTHON) -m venv $(1)
endef

# $(call build-into,FOLDER): the native module, built in release mode, in an editable install.
define build-into
	VIRTUAL_ENV="$(abspath $(1))" $(1)/bin/maturin develop --release --locked
endef

$(DEMO)/installed: requirements/build.txt requirements/demo.txt | tools-present
	$(call make-venv,$(DEMO))
	$(DEMO)/bin/python -m pip install $(PIP_FLAGS) --no-deps -r requirements/demo.txt
	@touch $@

$(TEST)/installed: requirements/build.txt requirements/test.txt requirements/torch.txt requirements/torch-pins.txt | tools-present
	$(call make-venv,$(TEST))
	$(TEST)/bin/python -m pip install $(PIP_FLAGS) --no-deps -r requirements/test.txt
	$(TEST)/bin/python -m pip install $(PIP_FLAGS) -r requirements/torch.txt
	@touch $@

# Pure Python: nothing of the connectors needs vLLM's kernels. Its own tests come from the same archive.
VLLM := 0.33.0
$(TEST)/with-vllm: requirements/vllm.txt | $(TEST)/installed
	$(TEST)/bin/python -m pip install $(PIP_FLAGS) --no-deps -r requirements/vllm.txt
	VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=$(VLLM) $(TEST)/bin/python -m pip download $(PIP_FLAGS) \
	  --no-deps --no-build-isolation --no-binary vllm --dest $(TEST)/upstream vllm==$(VLLM)
	VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=$(VLLM) $(TEST)/bin/python -m pip install $(PIP_FLAGS) \
	  --no-deps --no-build-isolation $(TEST)/upstream/vllm-$(VLLM).tar.gz
	@touch $@

$(DOCS)/installed: requirements/build.txt requirements/docs.txt | tools-present
	$(call make-venv,$(DOCS))
	$(DOCS)/bin/python -m pip install $(PIP_FLAGS) --no-deps -r requirements/docs.txt
	@touch $@

$(DOCS)/built: $(DOCS)/installed $(BUILD_SOURCES)
	$(call build-into,$(DOCS))
	@touch $@

$(DEMO)/built: $(DEMO)/installed $(BUILD_SOURCES)
	$(call build-into,$(DEMO))
	@touch $@

$(TEST)/built: $(TEST)/installed $(BUILD_SOURCES)
	$(call build-into,$(TEST))
	@touch $@
