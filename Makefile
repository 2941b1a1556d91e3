# Everything is built into ./build, or kept in the user's cache directory; nothing is installed elsewhere. Only Go and make are required.

.DEFAULT_GOAL := help
.PHONY: help demo build clib install python wheel release test test-all test-torch test-faults race soak fuzz lint format generate bench bench-peers bench-fabric bench-hosts gpu-bundle docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: ## train a small mixture-of-experts model on four ranks, measure the exchange, say PASS or FAIL (3 minutes)
	@sh scripts/demo.sh

build: ## build the command line into build/weft
	@sh scripts/build.sh weft

clib: ## build the C library and its NCCL EP face, with headers, into build/clib (needs a C compiler)
	@sh scripts/clib.sh

install: ## install the C library, headers, pkg-config and CMake files, and the command below PREFIX (/usr/local)
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" sh scripts/install.sh

python: ## test the Python package; arguments for pytest in PYTEST
	@sh scripts/test.sh python pytest

wheel: ## build the wheels of the Python packages, with the C library and the command inside, into dist
	@sh scripts/wheel.sh

release: ## build and check a release of the last commit in dist: wheels, source, commands, checksums, bill of materials
	@sh scripts/release.sh

test: ## run the tests (15 minutes on 2 cores)
	@sh scripts/test.sh

test-all: ## run every test: what emulated GPUs take long for, and the race detector, too (25 minutes on 2 cores)
	@sh scripts/test.sh all

test-torch: ## test the Python package with each PyTorch of TORCH, by default those of scripts/torch.txt (5 GB and 10 minutes each)
	@sh scripts/test-torch.sh $(TORCH)

test-faults: ## stop and kill ranks at random moments: RUNS jobs (500) of SEED, at most 45 minutes
	@sh scripts/test-faults.sh

race: ## run the short tests under the race detector (needs a C compiler)
	@sh scripts/test.sh python nvrtc libfabric race

soak: ## run the long tests: SOAK_OPS operations (1000000), each one checked
	@sh scripts/soak.sh

fuzz: ## fuzz every parser for FUZZTIME each (20s)
	@sh scripts/fuzz.sh

lint: ## run the linters and check module files, generated files and other platforms
	@sh scripts/lint.sh

format: ## rewrite the Go and Python files as the linters want them
	@sh scripts/lint.sh format

generate: ## regenerate the generated files
	@sh scripts/generate.sh

bench: ## measure this machine's floors, then every operation against them
	@sh scripts/bench.sh

bench-peers: ## compare with Open MPI, MPICH and Gloo, installed where possible
	@sh scripts/bench-peers.sh

bench-fabric: ## compare libfabric from Go with libfabric from C
	@sh scripts/bench-fabric.sh

bench-hosts: ## compare an all-reduce between two hosts with Gloo and Open MPI, in network namespaces
	@sh scripts/bench-hosts.sh

gpu-bundle: ## build what a GPU host without Go needs to run the tests, into build/gpu
	@sh scripts/gpu-bundle.sh

docs: ## build the documentation as a site into build/site (needs Python with pip; npm for its drawings)
	@sh scripts/docs.sh

clean: ## remove build/ and dist/
	@chmod -R u+w build 2>/dev/null || true
	@rm -rf build dist
