#!/bin/sh
# Runs the tests. Named parts on the command line select some of them: vet python nvrtc libfabric test
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
		go test -json -ldflags='-s -w' "$@" || status=$? # symbols are for debuggers, and take time to link
		echo "$status" >"$build/logs/status"
	} | "$build/bin/testreport" "$into" && [ "$(cat "$build/logs/status")" = 0 ]
}

# begin NAME: has scripts/NAME.sh fetch what it is for, beside what follows. A download takes little of a
# processor.
begin() {
	sh "scripts/$1.sh" >"$build/logs/$1.path" &
	eval "fetching_$1=$!"
}

# fetched NAME REQUIRED: waits for that, and puts into $path what it has printed. Where it cannot be had the
# part is skipped, unless WEFT_REQUIRE_REQUIRED says that it must.
fetched() {
	status=0
	eval "wait \"\$fetching_$1\"" || status=$?
	path=$(cat "$build/logs/$1.path")
	case $status in
	0) ;;
	77) skip_or_fail "$2" "$(cat "$build/logs/$1.reason")" ;;
	*) return 1 ;;
	esac
}

# The interpreter serves the Go tests that talk to real PyTorch.
python_part() {
	fetched python TORCH || return
	export WEFT_PYTHON="$path"
	"$path" -W ignore -c 'import torch; print("torch", torch.__version__)'
}

# The compiler for GPU kernels needs no GPU.
nvrtc_part() {
	fetched nvrtc NVRTC || return
	export WEFT_NVRTC="$path"
	printf 'NVRTC in %s\n' "$path"
}

# The library that carries data between hosts needs no network card.
libfabric_part() {
	fetched libfabric FABRIC || return
	export WEFT_LIBFABRIC="$path"
	printf 'libfabric in %s\n' "$path"
}

vet_part() {
	go vet ./...
}

# The packages that take longest begin first, and the others run beside them. Tests that wait do so
# four at once. Another part vets.
test_part() {
	(export CGO_ENABLED=0 && report test -vet=off -parallel 4 -timeout "$limit" ./ep ./collective ./internal/eptest ./clib ./...)
}

# raced names the packages with anything that runs at once, in their tests or in themselves. What tests
# of the C library start is programs in C, which the detector does not see.
raced() {
	go list -f '{{.Dir}} {{.ImportPath}}' ./... | grep -v '/clib$' | while read -r folder package; do
		! grep -qE '(^|[[:space:]])go (func|[A-Za-z_.]+\()|\.Go\(|"sync|Parallel\(\)|ranktest"' "$folder"/*.go ||
			printf '%s\n' "$package"
	done
}

race_part() {
	compiler=$(go env CC)
	if ! printf '#include <stdlib.h>\n' | ${compiler:-cc} -x c -fsyntax-only - >/dev/null 2>&1; then
		skip_or_fail RACE 'no C compiler'
		return
	fi
	packages=$(raced) && [ -n "$packages" ] || return 1
	# Those that take longest begin first.
	first='./collective ./ep ./fabric ./plan/internal/gpu ./cmd/weft ./plan/executor ./collective/internal/gpu'
	# shellcheck disable=SC2086 # one argument for each package
	(export CGO_ENABLED=1 && report race -short -race -vet=off -parallel 4 -timeout "$limit" $first $packages)
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
	go -C tools test -vet=all ./...
}

# Limits are for what hangs: five times what the longest package takes by itself with nothing kept.
# A machine that has more to do takes several times as long.
limit=30m
[ "$#" -gt 0 ] || set -- vet python nvrtc libfabric test pytest tools
if [ "$1" = all ]; then
	export WEFT_TEST_ALL=1
	limit=60m
	set -- vet python nvrtc libfabric test race pytest tools
fi
# Compiled kernels that no run has read for a month go.
find "$XDG_CACHE_HOME/weft/emulated" "$XDG_CACHE_HOME/weft/compiled" -type f -atime +30 -delete 2>/dev/null || true
for name in "$@"; do
	case $name in
	python | nvrtc | libfabric) begin "$name" ;;
	esac
done
for name in "$@"; do
	part "$name" "${name}_part"
done
summary
