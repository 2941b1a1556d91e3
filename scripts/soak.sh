#!/bin/sh
# Runs the long tests: those that take -soak.ops, with as many operations as SOAK_OPS says.
set -eu
. "$(dirname "$0")/env.sh"

packages=$(grep -rl --include='*_test.go' '"soak\.ops"' . | xargs -r -n 1 dirname | sort -u)
[ -n "$packages" ] || fail 'no test takes -soak.ops'
# shellcheck disable=SC2086 # one word a package
exec go test -v -count 1 -timeout 12h -run Soak $packages -soak.ops="${SOAK_OPS:-1000000}"
