# Sourced by test.sh and lint.sh, after env.sh: runs named parts, one line and one duration each,
# and a table at the end. A part returns 0, or 77 after calling "skip REASON", or anything else for
# a failure. The parts that follow a failed one still run.
# shellcheck shell=sh

table=
failures=0
reason=

skip() {
	reason=$*
	return 77
}

# part NAME COMMAND...
part() {
	name=$1
	shift
	printf '\n==> %s\n' "$name"
	reason=
	status=0
	since=$(date +%s)
	"$@" || status=$?
	took=$(($(date +%s) - since))
	case $status in
	0) verdict=ok ;;
	77) verdict="skipped: $reason" ;;
	*)
		verdict=FAILED
		failures=$((failures + 1))
		;;
	esac
	printf '%s: %s (%d s)\n' "$name" "$verdict" "$took"
	table="$table$(printf '  %-12s %5d s  %s' "$name" "$took" "$verdict")
"
}

# Prints the table and exits with 1 if a part failed.
summary() {
	printf '\n%s' "$table"
	if [ "$failures" -ne 0 ]; then
		printf '%d failed\n' "$failures"
		exit 1
	fi
	exit 0
}

# required NAME: whether WEFT_REQUIRE_NAME turns a skip into a failure.
required() {
	eval "[ \"\${WEFT_REQUIRE_$1:-}\" = 1 ]"
}

# skip_or_fail NAME REASON: the outcome of a part that cannot run here.
skip_or_fail() {
	if required "$1"; then
		printf '%s, and WEFT_REQUIRE_%s=1\n' "$2" "$1"
		return 1
	fi
	skip "$2"
}
