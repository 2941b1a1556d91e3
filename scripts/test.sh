#!/bin/sh
# Runs the tests. Named parts on the command line select some of them: python nvrtc libfabric vet test
# race pytest tools. "all" is all of them, the race detector included, with everything that emulated GPUs
# have, which WEFT_TEST_ALL=1 asks for. Without a name all parts but race run. build/logs says how
# long each test took, and which were skipped.
#
# What this machine cannot run is skipped by name; WEFT_REQUIRE_RACE=1, WEFT_REQUIRE_TORCH=1,
# WEFT_REQUIRE_PYTEST=1, WEFT_REQUIRE_NVRTC=1 and WEFT_REQUIRE_FABRIC=1 make that a failure.
set -eu
. "$(dirname "$0")/env.sh"
. scripts/parts.sh

# report NAME ARGS...: runs "go test -json ARGS...", printing one line a package, what failed in
# full, and why how many were skipped. Durations and names of what was skipped go into files whose
# names begin with NAME.
report() {
	into=build/logs/$1
	shift
	CGO_ENABLED=0 go build -C tools -o "$build/bin/testreport" ./testreport || return
	rm -f "$build/logs/status"
	{
		status=0
		go test -json "$@" || status=$?
		echo "$status" >"$build/logs/status"
	} | "$build/bin/testreport" "$into" && [ "$(cat "$build/logs/status")" = 0 ]
}

# The interpreter serves the Go tests that talk to real PyTorch, so this part comes first.
python_part() {
	status=0
	python=$(sh scripts/python.sh) || status=$?
	case $status in
	0)
		export WEFT_PYTHON="$python"
		"$python" -W ignore -c 'import torch; print("torch", torch.__version__)'
		;;
	77) skip_or_fail TORCH "$(cat "$build/logs/python.reason")" ;;
	*) return 1 ;;
	esac
}

# So does the compiler for GPU kernels, which needs no GPU.
nvrtc_part() {
	status=0
	folder=$(sh scripts/nvrtc.sh) || status=$?
	case $status in
	0)
		export WEFT_NVRTC="$folder"
		printf 'NVRTC in %s\n' "$folder"
		;;
	77) skip_or_fail NVRTC "$(cat "$build/logs/nvrtc.reason")" ;;
	*) return 1 ;;
	esac
}

# And the library that carries data between hosts, which needs no network card.
libfabric_part() {
	status=0
	folder=$(sh scripts/libfabric.sh) || status=$?
	case $status in
	0)
		export WEFT_LIBFABRIC="$folder"
		printf 'libfabric in %s\n' "$folder"
		;;
	77) skip_or_fail FABRIC "$(cat "$build/logs/libfabric.reason")" ;;
	*) return 1 ;;
	esac
}

vet_part() {
	go vet ./...
}

# The packages that take longest begin first, and the others run beside them. Tests that wait do so
# four at once.
test_part() {
	(export CGO_ENABLED=0 && report test -parallel 4 -timeout "$limit" ./ep ./collective ./internal/eptest ./clib ./...)
}

race_part() {
	compiler=$(go env CC)
	if ! printf '#include <stdlib.h>\n' | ${compiler:-cc} -x c -fsyntax-only - >/dev/null 2>&1; then
		skip_or_fail RACE 'no C compiler'
		return
	fi
	# What tests of the C library start is programs in C, which the detector does not see.
	# shellcheck disable=SC2046 # one argument for each package
	(export CGO_ENABLED=1 && report race -short -race -timeout "$limit" $(go list ./... | grep -v '/clib$'))
}

pytest_part() {
	status=0
	# PYTEST is arguments as a shell has them, with quotes.
	eval "set -- ${PYTEST:-}"
	sh scripts/pytest.sh "$@" || status=$?
	case $status in
	0) ;;
	77) skip_or_fail PYTEST "$(cat "$build/logs/venv.reason")" ;;
	*) return 1 ;;
	esac
}

tools_part() {
	go -C tools vet ./... && go -C tools test ./... && sh scripts/generate.sh check
}

# Limits are for what hangs: five times what the longest package takes by itself with nothing kept.
# A machine that has more to do takes several times as long.
limit=30m
[ "$#" -gt 0 ] || set -- python nvrtc libfabric vet test pytest tools
if [ "$1" = all ]; then
	export WEFT_TEST_ALL=1
	limit=60m
	set -- python nvrtc libfabric vet test race pytest tools
fi
# Compiled kernels that no run has read for a month go.
find "$XDG_CACHE_HOME/weft/emulated" "$XDG_CACHE_HOME/weft/compiled" -type f -atime +30 -delete 2>/dev/null || true
for name in "$@"; do
	part "$name" "${name}_part"
done
summary
