#!/bin/sh
# Four ranks on this machine train a small mixture-of-experts model, fewer ranks repeat the beginning, and the
# exchange that they used is measured. The last three lines are the verdict, what it rests on, and the speed.
set -eu
. "$(dirname "$0")/env.sh"

failed() {
	printf '\nFAIL: %s\n' "$*"
	exit 1
}

# show LOG COMMAND...: what the command prints goes to the screen and to the log.
show() {
	log=$1
	shift
	rm -f "$log.passed"
	{ "$@" && : >"$log.passed"; } | tee "$log"
	[ -e "$log.passed" ]
}

# found LOG PATTERN: the part in \( \) of the line that has it last.
found() {
	sed -n "s/.*$2.*/\\1/p" "$1" | tail -n 1
}

sh scripts/build.sh weft moe
GOROOT=$(go env GOROOT) # the model trains on the standard library's source
export GOROOT
logs=$build/logs

printf '\nTraining a mixture-of-experts model: 4 ranks, experts spread over them.\n'
show "$logs/demo-train.log" "$build/weft" run -n 4 "$build/moe" || failed 'training, see above'

printf '\nThe first 10 steps again on 1, 2 and 4 ranks: their losses must be the same, bit for bit.\n'
hashes=
for ranks in 1 2 4; do
	"$build/weft" run -n "$ranks" "$build/moe" -steps 10 -check=false >"$logs/demo-$ranks.log" ||
		failed "training on $ranks ranks, see build/logs/demo-$ranks.log"
	hash=$(found "$logs/demo-$ranks.log" 'hash of all losses \([0-9a-f]*\)')
	printf '%s ranks: hash of all losses %s\n' "$ranks" "$hash"
	hashes="$hashes $hash"
done
# shellcheck disable=SC2086 # one word a number of ranks
set -- $hashes
[ "$#" = 3 ] && [ "$1" = "$2" ] && [ "$2" = "$3" ] || failed 'the losses differ between numbers of ranks'

printf '\nMeasuring the exchange: 2 and 4 ranks, results verified in the same run.\n'
"$build/weft" bench ep --ranks 2,4 --tokens 1,8,64,512 --report "$build/report.html" >"$logs/demo-bench.log" ||
	failed 'measuring, see build/logs/demo-bench.log'
cat "$logs/demo-bench.log"

printf '\nThe report, with plots: %s\n\n' "$build/report.html"
printf 'PASS: the model learned, and every output that was looked at is right.\n'
printf 'proved: 4 ranks reached a loss of %s; %s exchanges of each rank are those of a computation without them; ' \
	"$(found "$logs/demo-train.log" 'loss \([0-9.]* nats per byte, [0-9.]* below the unigram entropy\)')" \
	"$(found "$logs/demo-train.log" 'without them: \([0-9]*\),')"
printf '1, 2 and 4 ranks have the same losses (%s); %s.\n' "$1" \
	"$(found "$logs/demo-bench.log" 'output: \(.* rows verified\) in this run')"
printf 'speed: %s.\n' "$(found "$logs/demo-bench.log" 'speed: \(.*\)')"
