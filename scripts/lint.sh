#!/bin/sh
# Runs the linters and the checks that need no test to run. Named parts select some of them: linter go
# modules generated cross cgo clib columns python. With "format", rewrites the Go and Python files instead.
set -eu
. "$(dirname "$0")/env.sh"
. scripts/parts.sh

linter=$build/bin/golangci-lint

# Built from the sums of tools/lint once, and again when they change.
linter_part() {
	if ! cmp -s tools/lint/go.sum "$linter.sum"; then
		printf 'building golangci-lint (a minute or two, once)\n'
		go build -C tools/lint -o "$linter" github.com/golangci/golangci-lint/v2/cmd/golangci-lint &&
			cp tools/lint/go.sum "$linter.sum"
	fi
}

go_part() {
	linter_part && "$linter" run ./... && (cd tools && "$linter" run --config ../.golangci.yaml ./...)
}

modules_part() {
	go mod tidy -diff && go -C tools mod tidy -diff
}

generated_part() {
	sh scripts/generate.sh check
}

# What is written for Linux must still build, and say so, elsewhere.
cross_part() {
	for target in linux/arm64 darwin/arm64 windows/amd64; do
		printf '%s\n' "$target"
		GOOS=${target%/*} GOARCH=${target#*/} CGO_ENABLED=0 go build ./... || return
	done
}

# Only the C library may use cgo. Build constraints hide such files from the linters, so this reads
# the text.
cgo_part() {
	! grep -rnE --include='*.go' --exclude-dir=build --exclude-dir=clib '^(import[[:space:]]+|[[:space:]]+)"C"' .
}

# Without cgo the linters see nothing of the C library.
clib_part() {
	compiler=$(go env CC)
	if ! command -v "${compiler%% *}" >/dev/null 2>&1; then
		skip_or_fail CC 'no C compiler'
		return
	fi
	(export CGO_ENABLED=1 && linter_part && go vet ./clib/... && "$linter" run ./clib/...)
}

# The linters of Go, and of Python in python/, look at the length of lines themselves.
columns_part() {
	git ls-files -z '*.c' '*.cc' '*.h' '*.cu' '*.cuh' '*.py' ':!python' |
		xargs -0 awk 'length($0) > 120 { print FILENAME ":" FNR ": more than 120 columns"; long = 1 } END { exit long }'
}

python_part() {
	status=0
	python=$(sh scripts/venv.sh) || status=$?
	case $status in
	0) ;;
	77)
		skip_or_fail PYTEST "$(cat "$build/logs/venv.reason")"
		return
		;;
	*) return 1 ;;
	esac
	"$python" -m ruff check --quiet --no-cache python && "$python" -m ruff format --quiet --no-cache --check python
}

if [ "${1:-}" = format ]; then
	linter_part
	"$linter" fmt ./...
	python=$(sh scripts/venv.sh) && "$python" -m ruff format --quiet --no-cache python
	cd tools && exec "$linter" fmt --config ../.golangci.yaml ./...
fi

[ "$#" -gt 0 ] || set -- go modules generated cross cgo clib columns python
for name in "$@"; do
	part "$name" "${name}_part"
done
summary
