#!/bin/sh
# Runs every fuzz target for FUZZTIME, one after the other.
set -eu
. "$(dirname "$0")/env.sh"

grep -rn --include='*_test.go' '^func Fuzz' . | sed 's|^\(.*\)/[^/]*:[0-9]*:func \(Fuzz[A-Za-z0-9_]*\).*|\1 \2|' | sort |
	while read -r package target; do
		printf '==> %s %s\n' "$package" "$target"
		go test -C "$package" -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-20s}" .
	done
