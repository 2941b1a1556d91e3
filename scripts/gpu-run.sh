#!/bin/sh
# Runs this bundle's tests and benchmarks on a host that has no Go. Each part runs under a time
# limit. A table comes last, the logs are in ./logs, or in the folder that OUT names. results.jsonl
# and doctor.json there are what tools/gputests keeps a record of.
#
# The exit status is 0 if all that was asked for passed, 1 if a part failed, 2 if there is no such
# part, 75 if steps of several are left for another call, 77 if nothing failed but something that
# needs a GPU was skipped because weft doctor sees none, or steps of several need more GPUs or longer
# calls, and 130 if a signal (Ctrl-C) ended it, which ends the part that runs too.
#
#   run.sh [PART...] [-test.FLAG...]
#   run.sh several [STEP...]
#
# The second is what several GPUs are for: the steps of several.txt, or those of these names, which may be patterns.
# several.sh says more.
#
# Parts, all but test-gpu if none is named:
#   doctor      what this machine offers
#   test-NAME   the tests of a package: test-cuda, test-ep, test-weft for the package at the root, and so on
#   test-gpu    the tests of all packages that have GPU in their name
#   link        what the links between the GPUs carry
#   bench-ep    expert parallelism on the GPUs, few tokens at a time
#   bench-ep-ht the same, thousands of tokens at a time
#   overlap     few tokens at a time beside matrix products
#   start       how long ranks on the GPUs take to start: compiling their kernels, where there is a compiler, and with them in the cache
#   c           the C library, by its test in C on one GPU and on up to four, where the bundle has it
#   nccl-ep     the NCCL EP face, by its test in C on one GPU and on up to four, where the bundle has it
#   nccl        the same with groups of communicators of NCCL's, of the NCCL that the machine has, or its python3
#   python      the Python package with CUDA tensors, by the python3 of the machine, where that has PyTorch and pytest, on one host and on two that share the GPUs.
#               WEFT_PYTHON_TESTS picks others of its tests, WEFT_LIBFABRIC another libfabric than the bundle's
#   calls       what calls of Python and deep_ep cost the host of a GPU, by the compiled part of the package and without it
#   sanitizer   below compute-sanitizer, where that is installed: memcheck and racecheck of every kernel of expert parallelism on small shapes, and memcheck of the
#               other packages' tests that have GPU in their name
#
# WEFT_PART_SECONDS is the time limit of a part (600); WEFT_GPUS is how many GPUs are used (all).
set -u
case ${1:-} in -h | --help)
	sed -n '2,/^set -u/s/^# \{0,1\}//p' "$0"
	exit
	;;
esac
begun=$(date +%s)
bundle=$(cd "$(dirname "$0")" && pwd) || exit 1
logs=${OUT:-$PWD/logs}
limit=${WEFT_PART_SECONDS:-600}
mkdir -p "$logs" || exit 1
logs=$(cd "$logs" && pwd) || exit 1
work=$(mktemp -d) || exit 1
trap 'trap "" HUP INT TERM; rm -rf "$work"' EXIT # a second Ctrl-C goes to rm too
trap stop HUP INT TERM
steps=
if [ "${1:-}" = several ]; then # its results go together into one archive
	shift
	out=$logs
	logs=$work/results
	mkdir -p "$logs/steps" || exit 1
	steps=${*:-*}
	set -- several
fi

# The bundle may have come with any owner and mode. Weft loads kernels only from
# a directory that no other user can write, so they are copied to such a place.
umask 022
for archive in "$bundle"/*.tar.xz; do
	tar -xJf "$archive" -C "$work" --no-same-owner --no-same-permissions || exit 1
done
if [ -d "$work/cache" ]; then
	WEFT_CACHE=$work/cache${WEFT_CACHE:+:$WEFT_CACHE}
	export WEFT_CACHE
fi
gzip -dc "$bundle/weft.gz" >"$work/weft" && chmod 700 "$work/weft" || exit 1

programs=$(cd "$work/tests" && find . -name run.test | sed 's|^\./||; s|/run\.test$||' | sort)
name_of() { printf 'test-%s' "$1" | tr / -; }

parts=
while [ $# -gt 0 ]; do
	case $1 in
	-test.*) break ;;
	esac
	parts="$parts $1"
	shift
done
if [ -z "$parts" ]; then
	parts=doctor
	for program in $programs; do
		parts="$parts $(name_of "$program")"
	done
	[ ! -d "$bundle/nccl-ep" ] || parts="$parts c nccl-ep nccl"
	[ ! -e "$bundle/python.tar.gz" ] || parts="$parts python calls"
	parts="$parts link bench-ep bench-ep-ht overlap start sanitizer"
fi

# program_of NAME: the test program that is a part of that name, if there is one.
program_of() {
	for program in $programs; do
		[ "$(name_of "$program")" != "$1" ] || printf '%s' "$program"
	done
}

# A wrong name is said before anything runs.
for name in $parts; do
	case $name in
	doctor | link | bench-ep | bench-ep-ht | overlap | start | c | nccl-ep | nccl | python | calls | sanitizer | test-gpu) continue ;;
	several) [ -z "$steps" ] || continue ;; # else it was not the first
	esac
	[ -z "$(program_of "$name")" ] || continue
	printf 'run.sh: there is no part %s; parts: doctor test-gpu c nccl-ep nccl python calls link bench-ep bench-ep-ht overlap start sanitizer' "$name" >&2
	for program in $programs; do
		printf ' %s' "$(name_of "$program")" >&2
	done
	printf '\n' >&2
	exit 2
done

# bounded DIRECTORY SECONDS COMMAND...: runs the command there, ends it after so long, and kills it
# after ten more seconds. It must not be called in a subshell or a pipe: a shell heeds a signal only
# where it waits for what runs in the background, and timeout, in a group of its own so that it can
# end all that the command started, hears of none from the terminal.
stopped=
bounding=
running=
bounded() {
	bounding=1
	(cd "$1" && shift && exec timeout -k 10 "$@") &
	running=$!
	[ -z "$stopped" ] || kill "$running" # the signal came before it was known whom to end
	bounded_status=0
	wait "$running" || bounded_status=$?
	if [ -n "$stopped" ]; then
		await_end "$running"
		exit 130
	fi
	bounding=
	running=
	return "$bounded_status"
}

# ended PROCESS: has it ended, be it waited for or not?
ended() {
	{ read -r _ _ state _ <"/proc/$1/stat"; } 2>/dev/null || return 0
	[ "$state" = Z ]
}

# await_end PROCESS: waits for a timeout that a signal has reached, and ends what that has left in its group. It ends
# alone, without the command, where the signal meets it between its fork and the next instruction.
await_end() {
	until ended "$1"; do # a signal is lost that meets a shell between its fork and its next instructions
		kill "$1" 2>/dev/null
		sleep 0.1
	done
	wait "$1"
	kill -- "-$1" 2>/dev/null
	for _ in $(seq 100); do
		kill -s 0 -- "-$1" 2>/dev/null || break
		sleep 0.1
	done
	kill -s KILL -- "-$1" 2>/dev/null
}

# stop is what a signal does: timeout passes it on, and kills who does not heed it within ten
# seconds.
stop() {
	stopped=1
	[ -n "$bounding" ] || exit 130
	for one in $running; do
		kill "$one" 2>/dev/null
	done
}

# A part returns 0, or 77 after setting reason, or anything else for a failure.
reason=
: >"$logs/tests.log"
: >"$logs/bench.log"
printf '{"date":"%s","build":"%s","flags":"%s"}\n' "$(date +%F)" "$(cat "$bundle/build" 2>/dev/null)" "$(printf '%s' "$*" | tr -d '"\\')" >"$logs/results.jsonl"
cd "$work" || exit 1

# What is wrong with a machine is a finding, and no failure of this part.
doctor() {
	bounded . "$limit" ./weft doctor || [ $? = 1 ]
}

# tests PROGRAM ARGS...: its output goes to tests.log, and what failed is shown.
tests() {
	program=$1
	shift
	status=0
	# Ranks that share a GPU need a hardware queue for each of their streams.
	bounded "tests/$program" $((limit + 20)) env CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-32}" ./run.test -test.v -test.timeout "${limit}s" "$@" >output 2>&1 || status=$?
	{
		printf '==== %s\n' "$program"
		cat output
	} >>"$logs/tests.log"
	passed=$((passed + $(grep -c '^ *--- PASS' output)))
	skipped=$((skipped + $(grep -c '^ *--- SKIP' output)))
	[ -n "$gpu" ] || ! grep -q '^ *--- SKIP: [^ ]*GPU' output || lacking=1
	if [ "$status" -ne 0 ]; then
		printf '%s:\n' "$program"
		grep -E '^ *--- FAIL|^panic: |^fatal error: ' output
		tail -n 15 output
	fi
	return "$status"
}

tests_on_gpus() {
	no_gpu && return 77
	wrong=0
	for program in $programs; do
		tests "$program" -test.run GPU "$@" || wrong=1
	done
	return "$wrong"
}

no_gpu() {
	[ -n "$gpu" ] && return 1
	reason='no GPU' lacking=1
}

link() {
	no_gpu && return 77
	bounded . "$limit" ./weft bench link ${WEFT_GPUS:+--gpus "$WEFT_GPUS"} --lines "$logs/link.json" 2>&1
}

bench_ep() {
	no_gpu && return 77
	./weft bench ep --help | grep -q -- '--device' || {
		reason='this weft measures ep on the host alone'
		return 77
	}
	lines=$work/bench-ep.json
	rm -f "$lines"
	status=0
	bounded . "$limit" ./weft bench ep --device gpu --mode "$1" ${WEFT_GPUS:+--gpus "$WEFT_GPUS"} --lines "$lines" 2>&1 || status=$?
	[ ! -e "$lines" ] || cat "$lines" >>"$logs/bench-ep.json"
	return "$status"
}

overlap() {
	no_gpu && return 77
	bounded . "$limit" ./weft bench overlap ${WEFT_GPUS:+--gpus "$WEFT_GPUS"} 2>&1
}

# Each in a process of its own: the first round of a process also does what its GPUs need once.
start() {
	no_gpu && return 77
	if grep -q '"compiler":{"path":"[^"]' "$work/report"; then
		bounded . "$limit" ./weft bench start ${WEFT_GPUS:+--gpus "$WEFT_GPUS"} 2>&1 || return
	fi
	bounded . "$limit" ./weft bench start --no-cold ${WEFT_GPUS:+--gpus "$WEFT_GPUS"} --lines "$logs/start.json" 2>&1
}

# unpack_library puts the C library, and the NCCL EP face with their tests, where they can be used,
# once.
unpack_library() {
	[ -d "$bundle/nccl-ep" ] || {
		reason='the bundle has been made without a C compiler'
		return 77
	}
	[ -d "$work/nccl-ep" ] || {
		mkdir "$work/nccl-ep" && cp "$bundle"/nccl-ep/*.gz "$work/nccl-ep/" && gunzip "$work"/nccl-ep/*.gz && chmod 700 "$work/nccl-ep/run" "$work/nccl-ep/c"
	}
}

# in_c PROGRAM ARGS...: a test in C, which takes the number of GPUs last.
in_c() {
	no_gpu && return 77
	unpack_library || return
	gpus=${WEFT_GPUS:-$(grep -o '"arch":"sm_' "$work/report" | wc -l)}
	[ "$gpus" -le 4 ] || gpus=4
	printf 'on one GPU: ' && bounded nccl-ep "$limit" "$@" 1 2>&1 || return
	[ "$gpus" -le 1 ] || { printf 'on %d GPUs: ' "$gpus" && bounded nccl-ep "$limit" "$@" "$gpus" 2>&1; }
}

# find_nccl says in found where NCCL is.
find_nccl() {
	found=$(python3 -c 'import glob, os, sys; print(*(os.path.dirname(f) for p in sys.path for f in glob.glob(p + "/nvidia/nccl/lib/libnccl.so.2")), sep=":")' 2>/dev/null)
	[ -n "$found" ] || ldconfig -p | grep -q 'libnccl\.so\.2' || {
		reason='no libnccl.so.2'
		return 77
	}
}

# through_nccl has groups meet through NCCL: that of a Python package, of which a PyTorch is often
# built, goes before the machine's own.
through_nccl() {
	no_gpu && return 77
	find_nccl || return
	in_c env LD_LIBRARY_PATH="$found${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" ./run nccl
}

unpack_libfabric() {
	[ -z "${WEFT_LIBFABRIC:-}" ] && [ -e "$bundle/libfabric.so.1.gz" ] || return 0
	mkdir "$work/libfabric" && gzip -dc "$bundle/libfabric.so.1.gz" >"$work/libfabric/libfabric.so.1" || return
	WEFT_LIBFABRIC=$work/libfabric WEFT_REQUIRE_FABRIC=1
	export WEFT_LIBFABRIC WEFT_REQUIRE_FABRIC
}

# unpack_python [MODULE] puts the Python packages where the interpreter of the machine finds them, if that has
# PyTorch, and a module.
unpack_python() {
	no_gpu && return 77
	interpreter=$(command -v python3) && "$interpreter" -c "import torch${1:+, $1}"'; raise SystemExit(not torch.cuda.is_available())' 2>/dev/null || {
		reason="no python3 with ${1:+$1 and }a PyTorch that sees GPUs"
		return 77
	}
	unpack_library || return
	[ -d "$work/python" ] || tar -xzf "$bundle/python.tar.gz" -C "$work" || return
	unpack_libfabric || return
	WEFT_LIBRARY=$work/nccl-ep/libweft.so
	PYTHONDONTWRITEBYTECODE=1
	export WEFT_LIBRARY PYTHONDONTWRITEBYTECODE
	[ -z "${WEFT_GPUS:-}" ] || {
		CUDA_VISIBLE_DEVICES=$(seq -s , 0 $((WEFT_GPUS - 1)))
		export CUDA_VISIBLE_DEVICES
	}
}

# What of the machine's own environment says who is who is left out by the tests themselves.
python_tests() {
	unpack_python pytest || return
	# shellcheck disable=SC2086 # they are arguments
	bounded python "$limit" env PYTHONPATH="$work/python" "$interpreter" -m pytest -q -s -p no:cacheprovider ${WEFT_PYTHON_TESTS:-tests/test_cuda.py} 2>&1
}

# One rank alone makes them, whoever started this.
python_calls() {
	unpack_python || return
	for compiled in 1 0; do
		bounded python "$limit" env -u WEFT_RANK -u WEFT_SIZE -u RANK -u WORLD_SIZE WEFT_COMPILED=$compiled \
			PYTHONPATH="$work/python" "$interpreter" -m weft.bench_calls --device gpu 2>&1 || return
	done
}

# find_sanitizer says in tool where compute-sanitizer is.
find_sanitizer() {
	tool=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | tail -n 1)
	[ -n "$tool" ] || {
		reason='no compute-sanitizer'
		return 77
	}
}

sanitizer() {
	no_gpu && return 77
	find_sanitizer || return
	wrong=0
	for program in $programs; do
		case $program in
		ep)
			# Tests of deadlines do not bear how slow this is, and a GPU runs one kernel at a time,
			# so that ranks cannot share it.
			WEFT_EP_SHARED=0
			export WEFT_EP_SHARED
			sanitize "$program" memcheck 'TestOnGPUs|TestEveryKernelOnGPUs|TestCountsOnGPUs|TestTokenCounter' || wrong=1
			sanitize "$program" racecheck 'TestOnGPUs|TestEveryKernelOnGPUs|TestCountsOnGPUs|TestTokenCounter' || wrong=1
			;;
		collective/internal/gpu)
			sanitize "$program" memcheck 'TestEveryCallOnGPUs/1$' || wrong=1
			;;
		*)
			(cd "tests/$program" && ./run.test -test.list GPU | grep -q '^Test') || continue
			sanitize "$program" memcheck GPU || wrong=1
			;;
		esac
	done
	return "$wrong"
}

# sanitize PROGRAM TOOL TESTS
sanitize() {
	printf '==== %s: %s\n' "$1" "$2"
	bounded "tests/$1" "$limit" "$tool" --tool "$2" --report-api-errors no --error-exitcode 99 ./run.test -test.v -test.short -test.run "$3"
}

# part NAME COMMAND...: runs a part and notes how it went.
table=
failed=0
lacked=0
part() {
	name=$1
	shift
	passed=0 skipped=0 reason= lacking=
	printf '\n==> %s\n' "$name"
	since=$(date +%s)
	status=0
	"$@" || status=$?
	took=$(($(date +%s) - since))
	case $status in
	0) result=ok outcome=passed ;;
	77) result="skipped: $reason" outcome=skipped ;;
	124 | 137) result='FAILED: it took too long' outcome=failed reason='it took too long' failed=$((failed + 1)) ;;
	*) result=FAILED outcome=failed failed=$((failed + 1)) ;;
	esac
	printf '{"part":"%s","seconds":%d,"result":"%s","passed":%d,"note":"%s"}\n' "$name" "$took" "$outcome" "$passed" "$reason" >>"$logs/results.jsonl"
	case $name:$status in
	*:77) ;;
	test-*) result="$result ($passed passed, $skipped skipped)" ;;
	esac
	[ -z "$lacking" ] || lacked=$((lacked + 1))
	table="$table$(printf '%-32s %6d s  %s' "$name" "$took" "$result")
"
}

# to LOG COMMAND...: shows a command's output and keeps it. The status and the reason must survive,
# so there is no pipe.
to() {
	log=$logs/$1
	shift
	"$@" >"$work/log"
	status=$?
	cat "$work/log"
	cat "$work/log" >>"$log"
	return "$status"
}

gpu=
bounded . "$limit" ./weft doctor --json >report 2>&1
cp report "$logs/doctor.json"
if grep -q '"arch":"sm_' report; then
	gpu=1
	export WEFT_REQUIRE_GPU=1
fi

if [ -n "$steps" ]; then
	. "$bundle/several.sh"
	several
	exit
fi

for name in $parts; do
	case $name in
	doctor) part doctor to doctor.log doctor ;;
	link) part link to bench.log link ;;
	bench-ep) part bench-ep to bench.log bench_ep ll ;;
	bench-ep-ht) part bench-ep-ht to bench.log bench_ep ht ;;
	overlap) part overlap to bench.log overlap ;;
	start) part start to bench.log start ;;
	c) part c to c.log in_c ./c ;;
	nccl-ep) part nccl-ep to nccl-ep.log in_c ./run gpus ;;
	nccl) part nccl to nccl-ep.log through_nccl ;;
	python) part python to python.log python_tests ;;
	calls) part calls to bench.log python_calls ;;
	sanitizer) part sanitizer to sanitizer.log sanitizer ;;
	test-gpu) part test-gpu tests_on_gpus "$@" ;;
	*) part "$name" tests "$(program_of "$name")" "$@" ;;
	esac
done

{
	printf '\n%s' "$table"
	[ "$failed" -eq 0 ] || printf '%d failed\n' "$failed"
	[ "$lacked" -eq 0 ] || printf 'weft doctor sees no GPU: what needs one was skipped in %d of the parts above, and has not passed\n' "$lacked"
} >"$logs/summary.txt"
cat "$logs/summary.txt"
printf 'logs: %s\n' "$logs"
[ "$failed" -eq 0 ] || exit 1
[ "$lacked" -eq 0 ] || exit 77
