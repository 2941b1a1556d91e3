#!/bin/sh
# Runs every test program of this bundle, with the arguments given (-test.short, -test.run NAME, ...), and prints a
# table. The output of each is kept beside it.
set -u
cd "$(dirname "$0")" || exit 1

./weft doctor
printf '\n%-28s %-7s %6s %8s %8s\n' package result passed skipped seconds
failed=0
for program in $(find tests -name run.test.gz | sort); do
	dir=$(dirname "$program")
	gzip -dc "$program" >"$dir/run.test" && chmod 755 "$dir/run.test"
	since=$(date +%s)
	if (cd "$dir" && ./run.test -test.v -test.timeout 8m "$@") >"$dir/output" 2>&1; then
		result=ok
	else
		result=FAILED
		failed=$((failed + 1))
	fi
	printf '%-28s %-7s %6d %8d %8d\n' "${dir#tests/}" "$result" \
		"$(grep -c '^ *--- PASS' "$dir/output")" "$(grep -c '^ *--- SKIP' "$dir/output")" "$(($(date +%s) - since))"
	[ "$result" = ok ] || {
		grep -E '^ *--- FAIL|^panic: ' "$dir/output"
		printf '    see %s/output\n' "$dir"
	}
done
[ "$failed" -eq 0 ] || {
	printf '%d failed\n' "$failed"
	exit 1
}
