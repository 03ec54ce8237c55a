# Every target needs Rust, a C++ compiler, make, and Python 3 with pip; `make libtorch` gets the rest.

# Where there is no wheel to take libtorch from, tch downloads it itself.
ifneq ($(shell uname -sm),Linux x86_64)
  ifeq ($(LIBTORCH)$(LIBTORCH_USE_PYTORCH),)
    FEATURES = --features download-libtorch
  endif
endif

PYTHON ?= python3

.PHONY: help libtorch demo mnist test soak ui bench bench-compile doc clean

help:
	@echo "make libtorch   fetch libtorch 2.13.0 for the CPU, once"
	@echo "make demo       train on handwritten digits"
	@echo "make mnist      train on all of MNIST  (MNIST=folder for your own copy)"
	@echo "make test       everything that CI checks"
	@echo "make soak       kill and resume a run 100 times, and read 100,000 forged checkpoints  (KILLS=100)"
	@echo "make ui         the compiler's messages alone, to be read"
	@echo "make bench      speed, as ratios to loops written by hand"
	@echo "make bench-compile   how long 200 hooks compile, against 200 by hand"
	@echo "make doc        the API docs"

libtorch:
	@$(PYTHON) scripts/libtorch.py

demo: libtorch
	cargo build -p examples --bin digits $(FEATURES)
	@cargo run -q -p examples --bin digits $(FEATURES)

mnist: libtorch
	@$(if $(MNIST),,$(PYTHON) scripts/mnist.py)
	cargo build -p examples --bin mnist $(FEATURES)
	@cargo run -q -p examples --bin mnist $(FEATURES) -- $(if $(MNIST),"$(MNIST)")

test: libtorch
	cargo fmt --all --check
	cargo clippy --workspace --all-targets $(FEATURES) -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps $(FEATURES)
	cargo test --workspace $(FEATURES)
	for cpu in default $(if $(shell grep -so -m1 avx2 /proc/cpuinfo),avx2); do \
	  ATEN_CPU_CAPABILITY=$$cpu cargo test -q --workspace --test it $(FEATURES) -- $(NUMERIC) || exit 1; \
	done

# Tests of numbers, which libtorch's kernels for other processors must pass too.
NUMERIC = around:: numbers:: optimizers:: parts:: reference:: schedules::

KILLS ?= 100
soak: libtorch
	TRAINER_SOAK=$(KILLS) cargo test -q -p tests $(FEATURES) resume::killed -- --nocapture
	TRAINER_HOSTILE=100000 cargo test -q -p tests $(FEATURES) hostile::

ui: libtorch
	@cargo test -q -p ui-tests $(FEATURES) >/dev/null
	@for message in ui-tests/fail/*/*.stderr; do echo; echo "── $$message"; cat $$message; done

bench: libtorch
	cargo bench -q -p trainer $(FEATURES)

bench-compile: libtorch
	@$(PYTHON) scripts/bench_compile.py $(FEATURES)

doc: libtorch
	cargo doc -p trainer --no-deps $(FEATURES)
	@echo "open target/doc/trainer/index.html"

clean:
	cargo clean
