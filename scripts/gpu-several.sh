# Sourced by run.sh of the GPU bundle for "run.sh several": what several GPUs are for, step by step.
#
# Each line of several.txt is a step: its name, the GPUs that it needs, the seconds that it takes, its limit in seconds,
# and what it does. Steps begin in that order. Tests share the machine, each with GPUs of its own; what measures has it
# to itself. A step that needs more GPUs than there are is left out.
#
# OUT gets several.tar.gz and summary.txt. The archive has a log of each step, the lines of JSON or the table that it
# wrote, results.jsonl and doctor.json. Where OUT has that archive already, of the same build and GPUs, steps that
# passed do not run again, and those that failed run after all others.
#
# WEFT_TOTAL_SECONDS (none): the call ends before that. Steps that no longer fit are left for another call, unless they
# take longer than any call of so many seconds.
#
# Exit status: 75 if steps are left for another call. 77 if nothing failed, and no step can run on so few GPUs or some
# take longer than a call. Else that of run.sh.
#
# What a step does:
#   test PROGRAM FLAG...            a package's tests, but none on emulated GPUs
#   sanitize TOOL PROGRAM TESTS     short tests below compute-sanitizer
#   python ARGUMENT...              tests of the Python package
#   c, nccl-ep, nccl                run.sh's parts of that name
#   lines ARGUMENT...               weft, its lines of JSON in STEP.json
#   json ARGUMENT...                the same of commands that write them to standard output
#   tune ARGUMENT...                weft tune, its table in STEP.json
#   measure PROGRAM BENCHMARKS      a package's benchmarks
# NAME=VALUE before it are variables of its environment. What lines, json and measure measure goes by the tables that
# the library brings along, and not by those of the machine's user.
# shellcheck shell=sh disable=SC2154 # run.sh has made them

emulated='/^emulated$|//^emulated$|///^emulated$' # parts of tests

several() {
	no_gpu && {
		printf 'run.sh: weft doctor sees no GPU: run this where "weft doctor --require gpu" ends with 0\n' >&2
		return 77
	}
	if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
		free=$(printf '%s' "$CUDA_VISIBLE_DEVICES" | tr , ' ')
	else
		free=$(seq -s ' ' 0 $(($(grep -o '"arch":"sm_' "$work/report" | wc -l) - 1)))
	fi
	[ -z "${WEFT_GPUS:-}" ] || free=$(printf '%s' "$free" | cut -d ' ' -f "-$WEFT_GPUS")
	gpus=$(printf '%s' "$free" | wc -w)
	total=${WEFT_TOTAL_SECONDS:-0}
	case $total in *[!0-9]*)
		printf 'run.sh: WEFT_TOTAL_SECONDS is %s: want whole seconds\n' "$total" >&2
		return 2
		;;
	esac
	resume || return
	mkdir "$work/doing" || return
	printf '{}\n' >"$work/tuning.json" || return
	unpack_libfabric || return

	bounding=1 began='' left=''
	for round in first again; do
		while read -r step count about limit does; do
			case $step in '' | '#'*) continue ;; esac
			wanted "$step" || continue
			case $round:$(result_of "$step") in
			first: | first:skipped | again:failed) ;;
			*) continue ;;
			esac
			case " $began " in *" $step "*) continue ;; esac
			[ "$count" -gt "$gpus" ] || begin
		done <"$bundle/several.txt"
		while [ -n "$running" ]; do
			rest
		done
	done
	bounding=
	report_steps
}

# resume takes up what an earlier call has left.
resume() {
	grep -v '^#' "$bundle/several.txt" | cut -d ' ' -f 1 >"$work/steps"
	set -f # a step may be a pattern
	for pattern in $steps; do
		while read -r name; do
			# shellcheck disable=SC2254 # it is a pattern
			case $name in $pattern) continue 2 ;; esac
		done <"$work/steps"
		printf 'run.sh: there is no step %s; several.txt has them\n' "$pattern" >&2
		return 2
	done
	set +f
	[ -e "$out/several.tar.gz" ] || return 0
	mkdir "$work/earlier" || return 1
	tar -xzf "$out/several.tar.gz" -C "$work/earlier" 2>"$work/tar" || {
		printf 'run.sh: %s cannot be read: move it away, or name another folder in OUT: %s\n' \
			"$out/several.tar.gz" "$(tail -n 1 "$work/tar")" >&2
		return 2
	}
	for file in doctor.json results.jsonl; do
		case $file in
		doctor.json) of='GPUs' pattern='"name":"[^"]*"' ;;
		*) of='build' pattern='"build":"[^"]*"' ;;
		esac
		earlier=$(grep -o "$pattern" "$work/earlier/$file") now=$(grep -o "$pattern" "$logs/$file")
		[ "$earlier" = "$now" ] || {
			printf 'run.sh: %s is of another %s: move it away, or name another folder in OUT\n' \
				"$out/several.tar.gz" "$of" >&2
			return 2
		}
	done
	cp -R "$work/earlier/." "$logs/" && rm -rf "$work/earlier"
}

wanted() {
	set -f
	for pattern in $steps; do
		# shellcheck disable=SC2254 # it is a pattern
		case $1 in $pattern)
			set +f
			return 0
			;;
		esac
	done
	set +f
	return 1
}

# result_of STEP: passed, failed or skipped, or nothing if it has not run.
result_of() {
	[ ! -e "$logs/steps/$1" ] || sed 's/.*"result":"\([a-z]*\)".*/\1/' "$logs/steps/$1"
}

ending=20 # the seconds that killing and packing may take

# fits: is there time for a step?
fits() {
	[ "$total" -gt 0 ] || return 0
	remains=$((begun + total - ending - $(date +%s)))
	[ "$about" -le "$remains" ]
}

# begin starts the step of that name, count, about, limit and does, when it has its GPUs.
begin() {
	[ -z "$stopped" ] || rest
	needs=$count
	case " $does" in *' lines '* | *' json '* | *' tune '* | *' measure '*) needs=$gpus ;; esac
	while fits && [ "$(printf '%s' "$free" | wc -w)" -lt "$needs" ]; do
		rest
	done
	fits || {
		left="$left $step"
		return
	}
	began="$began $step" what=$does variables='' folder=. signal=TERM reason=''
	said=$work/doing/$step.log
	rm -f "$logs/$step.json"
	set -f
	# shellcheck disable=SC2086 # they are words
	set -- $does
	set +f
	while :; do
		case $1 in
		[A-Z]*=*) variables="$variables $1" && shift ;;
		*) break ;;
		esac
	done
	does=$1
	shift
	case $does in
	lines | json) part=$(part_of "$@") what="weft $*" variables="WEFT_TUNING=$work/tuning.json$variables" ;;
	tune) part=tune what="weft tune $*" ;;
	python) part=python what=${what#*python } ;;
	sanitize) part=sanitizer what=${what#*sanitize } ;;
	measure) part=bench-$(printf '%s' "$1" | tr / -) what=$2 variables="WEFT_TUNING=$work/tuning.json$variables" ;;
	test) part=$(name_of "$1") ;;
	*) part=$does what="on $count GPUs" ;;
	esac
	case $does in
	test)
		what=$variables${what#*"$1"} folder=tests/$1 signal=QUIT # at which a program of Go's says where it is
		shift
		set -- ./run.test -test.v -test.timeout 0 -test.skip "$emulated" "$@"
		;;
	sanitize)
		find_sanitizer || {
			skip_step
			return
		}
		folder=tests/$2
		set -- "$tool" --tool "$1" --report-api-errors no --error-exitcode 99 \
			./run.test -test.v -test.short -test.skip "$emulated" -test.run "$3"
		;;
	measure)
		case $2:${WEFT_PLANS:-} in
		*RealPlans*:)
			reason='WEFT_PLANS names no folder of plans'
			skip_step
			return
			;;
		esac
		folder=tests/$1
		set -- ./run.test -test.run NONE -test.bench "$2"
		;;
	python)
		unpack_python pytest || {
			skip_step
			return
		}
		folder=python variables="$variables PYTHONPATH=$work/python"
		set -- "$interpreter" -m pytest -q -s -p no:cacheprovider "$@"
		;;
	c | nccl-ep | nccl)
		unpack_library || {
			skip_step
			return
		}
		folder=nccl-ep
		case $does in
		c) set -- ./c "$count" ;;
		nccl-ep) set -- ./run gpus "$count" ;;
		nccl)
			find_nccl || {
				skip_step
				return
			}
			variables="$variables LD_LIBRARY_PATH=$found${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
			set -- ./run nccl "$count"
			;;
		esac
		;;
	lines) set -- ./weft "$@" --lines "$logs/$step.json" ;;
	tune) set -- ./weft tune "$@" --out "$logs/$step.json" ;;
	json) said=$logs/$step.json && set -- ./weft "$@" --json ;;
	*)
		reason="several.txt has no $does"
		skip_step
		return
		;;
	esac
	case $does in
	lines | json | tune) ;; # they have as many connections as they need
	*) variables="CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-32} $variables" ;;
	esac
	most=$limit
	[ "$total" -eq 0 ] || [ "$most" -le $((total * 4 / 5)) ] || most=$((total * 4 / 5))
	given=$most
	[ "$total" -eq 0 ] || [ "$given" -le "$remains" ] || given=$remains
	of=$(printf '%s' "$free" | cut -d ' ' -f "-$needs")
	free=$(printf '%s' "$free" | cut -s -d ' ' -f "$((needs + 1))-")
	printf 'from %d s on: %s\n' $(($(date +%s) - begun)) "$step"
	: >"$work/doing/$step.log"
	# shellcheck disable=SC2086 # they are words
	(cd "$folder" && exec timeout -s "$signal" -k 10 "$given" env \
		CUDA_VISIBLE_DEVICES="$(printf '%s' "$of" | cut -d ' ' -f "-$count" | tr ' ' ,)" \
		$variables "$@") </dev/null >>"$said" 2>>"$work/doing/$step.log" &
	running="$running $!"
	[ -z "$stopped" ] || kill $! # the signal came before it was known whom to end
	printf '%s\n' "$step" "$part" "$what" "$count" "$most" "$given" "$(date +%s)" "$of" "$does" >"$work/step.$!"
}

# part_of ARGUMENT...: what a command of weft is called in the record.
part_of() {
	case "$*" in
	'bench ep '*'--mode ht'*) echo bench-ep-ht ;;
	'bench link'* | 'bench start'* | 'bench overlap'*) echo "$2" ;;
	'bench '*) echo "bench-$2" ;;
	esac
}

# rest waits until a step has ended, if not for long.
rest() {
	[ -z "$stopped" ] || {
		for process in $running; do
			await_end "$process"
		done
		exit 130
	}
	some=
	for process in $running; do
		ended "$process" || continue
		running=$(printf ' %s ' "$running" | sed "s/ $process / /; s/^ *//; s/ *$//") some=1
		status=0
		wait "$process" || status=$?
		{ read -r step_ && read -r part_ && read -r what_ && read -r count_ && read -r most_ && read -r given_ &&
			read -r since_ && read -r of_ && read -r does_; } <"$work/step.$process"
		rm "$work/step.$process"
		free=$(printf '%s %s' "$free" "$of_" | tr ' ' '\n' | grep . | sort -n | tr '\n' ' ' | sed 's/ $//')
		finish
	done
	[ -n "$some" ] || sleep 0.2
}

# finish notes how the step that rest has waited for went.
finish() {
	took=$(($(date +%s) - since_)) log=$logs/$step_.log
	mv "$work/doing/$step_.log" "$log" # until now it could change while the archive was written
	passed=$(grep -c '^ *--- PASS' "$log")
	skipped=$(grep -c '^ *--- SKIP' "$log")
	note=
	case $status in
	124 | 137)
		if [ "$given_" -lt "$most_" ]; then
			left="$left $step_"
			printf '%s: ended with this call; another one runs it again\n' "$step_"
			return
		fi
		result=failed note='it took too long'
		;;
	0)
		result=passed
		[ "$does_:$passed" != test:0 ] || result=failed note="no test ran, $skipped skipped"
		;;
	*) result=failed ;;
	esac
	if [ "$result" = failed ]; then
		printf '%s FAILED: %s\n' "$step_" "$note"
		grep -E '^ *--- FAIL|^panic: |^fatal error: ' "$log" | head -n 20
		tail -n 15 "$log"
	else
		printf '%s: %s, %d s\n' "$step_" "$result" "$took"
	fi
	if [ "$(wc -c <"$log")" -gt 1000000 ]; then
		{ head -c 100000 "$log" && printf '\n...\n' && tail -c 900000 "$log"; } >"$work/log" && mv "$work/log" "$log"
	fi
	note_step
	pack
}

# skip_step notes that the step cannot be done on this machine.
skip_step() {
	step_=$step part_=$part what_=$what count_=$count result=skipped took=0 passed=0 note=$reason
	note_step
}

note_step() {
	printf '{"part":"%s","seconds":%d,"result":"%s","passed":%d,"note":"%s","what":"%s","gpus":%d}\n' "$part_" "$took" "$result" \
		"$passed" "$note" "$(printf '%s' "$what_" | tr -d '"\\' | sed 's/^ *//')" "$count_" >"$logs/steps/$step_"
}

# pack writes the archive anew, so that it is there however the call ends.
pack() {
	head -n 1 "$logs/results.jsonl" >"$work/results.jsonl"
	while read -r name _; do
		[ ! -f "$logs/steps/$name" ] || cat "$logs/steps/$name"
	done <"$bundle/several.txt" >>"$work/results.jsonl"
	mv "$work/results.jsonl" "$logs/results.jsonl"
	tar -C "$logs" -czf "$out/several.tar.gz.new" . && mv "$out/several.tar.gz.new" "$out/several.tar.gz"
}

# report_steps prints how all steps went, and gives the exit status.
report_steps() {
	pack
	failed=0 later=0 larger=0 longer=0 done=0
	while read -r name count about _; do
		case $name in '' | '#'*) continue ;; esac
		wanted "$name" || continue
		seconds=0
		result=$(result_of "$name")
		case $result in
		'')
			if [ "$count" -gt "$gpus" ]; then
				result="needs $count GPUs" larger=$((larger + 1))
			elif [ "$total" -gt 0 ] && [ "$about" -gt $((total - ending)) ]; then
				result="needs WEFT_TOTAL_SECONDS of more than $((about + ending))" longer=$((longer + 1))
			else
				result='not yet' later=$((later + 1))
			fi
			;;
		*)
			seconds=$(sed 's/.*"seconds":\([0-9]*\).*/\1/' "$logs/steps/$name")
			note=$(sed 's/.*"note":"\([^"]*\)".*/\1/' "$logs/steps/$name")
			[ "$result" = skipped ] || done=$((done + 1))
			[ "$result" != failed ] || result=FAILED failed=$((failed + 1))
			result=$result${note:+: $note}
			case " $began " in *" $name "*) ;; *) result="$result (earlier)" ;; esac
			;;
		esac
		printf '%-22s %5d s  %s\n' "$name" "$seconds" "$result"
	done <"$bundle/several.txt" >"$work/table"
	{
		cat "$work/table"
		printf '%d failed, %d left for another call, %d for longer calls, %d for more GPUs than %d; %s\n' \
			"$failed" "$later" "$longer" "$larger" "$gpus" "$out/several.tar.gz"
	} >"$out/summary.txt"
	cat "$out/summary.txt"
	[ "$later" -eq 0 ] || return 75
	[ "$failed" -eq 0 ] || return 1
	[ "$done" -gt 0 ] && [ "$longer" -eq 0 ] || return 77
}
