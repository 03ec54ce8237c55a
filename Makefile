# Every target needs Rust, a C++ compiler, make, and Python 3 with pip; `make libtorch` downloads
# libtorch.

# On platforms without a wheel of libtorch, tch downloads it.
ifneq ($(shell uname -sm),Linux x86_64)
  ifeq ($(LIBTORCH)$(LIBTORCH_USE_PYTORCH),)
    FEATURES = --features download-libtorch
  endif
endif

PYTHON ?= python3

# In a job of SLURM or MPI, tests and benchmarks would otherwise become its ranks.
unexport $(filter I_MPI_HYDRA_UUID LOCAL_RANK MASTER_ADDR MASTER_PORT MPI_% OMPI_% PMIX_% PMI_% RANK SLURM_% TORCHELASTIC_% WORLD_SIZE,$(.VARIABLES))

.PHONY: help libtorch demo mnist lint test soak sanitize interop nccl-compile picture ui bench race bench-history bench-data growth scale instructions bench-compile trace-viewer findings doc clean

help:
	@echo "make libtorch   download libtorch 2.13.0 for the CPU, once  (CUDA=1 for NVIDIA GPUs too, CUDA=0 to go back)"
	@echo "make demo       train on handwritten digits"
	@echo "make mnist      train on MNIST  (MNIST=folder to use your own copy)"
	@echo "make lint       formatting, lints, documentation and what would be published"
	@echo "make test       everything that CI checks"
	@echo "make soak       stress tests: kill a run 300 times, power losses, failing allocations, 100,000 forged checkpoints  (KILLS=300)"
	@echo "make sanitize   run tests with the sanitizers of addresses and undefined behavior in the C++ code (GCC on Linux)"
	@echo "make interop    compare with PyTorch, TensorBoard, pandas and MLflow in a virtual environment (several GB, once)"
	@echo "make nccl-compile    build the feature \`nccl\` (after make libtorch CUDA=1)"
	@echo "make picture    make the pictures of the README and the guide, after make demo (needs Chromium)"
	@echo "make ui         print the expected compiler diagnostics"
	@echo "make bench      benchmark against handwritten loops"
	@echo "make race       time a step beside Lightning, trainer-tools, fastai and MMEngine (several GB, once)"
	@echo "make bench-history   benchmark, keep the ratios in benches.jsonl, and plot them in benches.html  (HISTORY=file)"
	@echo "make growth     measure how the cost of what grows with a run depends on its size"
	@echo "make scale      measure what 2 to 64 ranks need to agree, and extrapolate"
	@echo "make bench-data compare loading data with PyTorch, WebDataset and MosaicML's streaming (several GB, once)"
	@echo "make instructions    count the instructions of a step, a point and an operation (needs Valgrind)"
	@echo "make bench-compile   benchmark the compile time of hooks against handwritten ones and against none"
	@echo "make trace-viewer    check that speedscope opens a trace  (needs npm and Chromium)"
	@echo "make findings   run the scripts that show surprising behavior of other software (an hour; FINDINGS=words in their names)"
	@echo "make doc        build the API docs"

# Nothing, or `cpu` or `cuda`.
BUILD = $(if $(CUDA),$(if $(filter 0 no,$(CUDA)),cpu,cuda))
libtorch:
	@$(PYTHON) scripts/libtorch.py $(BUILD)

demo: libtorch
	cargo build -p examples --bin digits $(FEATURES)
	@cargo run -q -p examples --bin digits $(FEATURES)

mnist: libtorch
	@$(if $(MNIST),,$(PYTHON) scripts/mnist.py)
	cargo build -p examples --bin mnist $(FEATURES)
	@cargo run -q -p examples --bin mnist $(FEATURES) -- $(if $(MNIST),"$(MNIST)")

LIFECYCLE_DOCS = $(or $(CARGO_TARGET_DIR),target)/doc/trainer/lifecycle
lint: libtorch
	$(PYTHON) -m compileall -q scripts tests
	cargo fmt --all --check
	cargo clippy --workspace --all-targets $(FEATURES) -- -D warnings
	cargo clippy -p trainer --all-targets $(FEATURES) -- -D warnings # without features, which the tests enable
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps $(FEATURES)
	test -d $(LIFECYCLE_DOCS) && ! grep -rhoE 'href="(crate|super)::[^"]*' $(LIFECYCLE_DOCS) | \
	  grep -vE '"(crate::Span|super::Subscriber|super::Span::current[(][)])$$' # links in generated code, which rustdoc does not check, without those of `tracing`
	CARGO_NET_OFFLINE=true $(PYTHON) scripts/packages.py
	$(PYTHON) scripts/findings.py check
	$(PYTHON) scripts/structure.py --check

test: lint
	cargo test --workspace $(FEATURES)
	for cpu in default $(if $(shell grep -so -m1 avx512f /proc/cpuinfo),avx2); do \
	  ATEN_CPU_CAPABILITY=$$cpu cargo test -q --workspace --test it $(FEATURES) -- $(NUMERIC) || exit 1; \
	done

# Numeric tests, which must also pass with libtorch's kernels for other processors: without AVX-512, all
# tests already ran with those for AVX2.
NUMERIC = around:: numbers:: optimizers:: parameters:: parts:: reference:: schedules:: weights::

KILLS ?= 300
soak: libtorch
	TRAINER_SOAK=$(KILLS) cargo test -q -p tests --test faults $(FEATURES) -- --nocapture --test-threads 1
	TRAINER_SOAK=$(KILLS) cargo test -q -p tests --test it $(FEATURES) averaging::a_run_killed -- --nocapture
	TRAINER_SOAK=$(KILLS) cargo test -q -p tests --test it $(FEATURES) rank_checkpoints::ranks_killed -- --nocapture
	TRAINER_FORGED_MANIFESTS=100000 cargo test -q -p tests --test it $(FEATURES) forged_manifests::

# In its own target folder, with the C++ code of both sys packages instrumented.
sanitize: libtorch
	@$(PYTHON) scripts/sanitize.py $(FEATURES)

interop: libtorch
	@$(PYTHON) scripts/interop.py $(FEATURES)

nccl-compile: libtorch
	cargo build -p trainer --features nccl $(FEATURES)

picture: libtorch
	@$(PYTHON) scripts/picture.py

ui: libtorch
	@cargo test -q -p ui-tests $(FEATURES) >/dev/null
	@for message in ui-tests/fail/*/*.stderr; do echo; echo "── $$message"; cat $$message; done

bench: libtorch
	cargo bench -q -p trainer --features distributed $(FEATURES)

race: libtorch
	@$(PYTHON) scripts/race.py $(FEATURES)

bench-history: libtorch
	@$(PYTHON) scripts/bench_history.py $(if $(HISTORY),--history "$(HISTORY)")

bench-data: libtorch
	@$(PYTHON) scripts/bench_data.py $(FEATURES)

growth: libtorch
	@$(PYTHON) scripts/growth.py $(FEATURES)

scale: libtorch
	@cargo bench -q -p trainer --features distributed $(FEATURES) --bench scale

instructions: libtorch
	@$(PYTHON) scripts/instructions.py

bench-compile: libtorch
	@$(PYTHON) scripts/bench_compile.py $(FEATURES)

trace-viewer: libtorch
	@$(PYTHON) scripts/trace_viewer.py $(FEATURES)

findings:
	@$(PYTHON) scripts/findings.py run $(FINDINGS)

# With the feature `doc-only`, which needs no libtorch, and with the items of all others.
doc:
	cargo doc -p trainer --no-deps --all-features
	@echo "open target/doc/trainer/index.html"

clean:
	cargo clean
