#!/bin/sh
# Times libfabric from Go against libfabric from C, between two processes of this machine, in interleaved
# rounds. Of each row the best round counts, so that the load of others shows as little as it can. Both
# sides open the same kind of queue, one with a descriptor: without it libfabric 2.5's tcp stalls at times.
#
# The program in C is built outside of the repository's files: see fabric-c.sh. PROVIDERS, ROUNDS and SIZES
# change what is run.
set -eu
. "$(dirname "$0")/env.sh"

providers=${PROVIDERS:-tcp tcp;ofi_rxm}
rounds=${ROUNDS:-5}
sizes=${SIZES:-4096 65536 1048576}
rows=$build/logs/bench-fabric.jsonl
: >"$rows"

folder=$(sh scripts/libfabric.sh) || fail "no libfabric: $(cat "$build/logs/libfabric.reason")"
export WEFT_LIBFABRIC="$folder" LD_LIBRARY_PATH="$folder"
sh scripts/build.sh weft

sh scripts/fabric-c.sh "$folder"

for round in $(seq "$rounds"); do
	printf 'round %d of %d\n' "$round" "$rounds" >&2
	for provider in $providers; do
		# shellcheck disable=SC2086 # one argument a size
		timeout 60 "$build/bin/fabric-c" "$provider" 127.0.0.1 $sizes >>"$rows" ||
			printf 'the program in C did not end: the round has no more of %s\n' "$provider" >&2
		# shellcheck disable=SC2086
		timeout 60 "$build/weft" bench fabric --provider "$provider" --source 127.0.0.1 \
			--sizes "$(printf '%s\n' $sizes | paste -sd, -)" --json >>"$rows"
	done
done

# A line of the table for each row of the program in C.
awk -F '[,:]' '
function field(name,    i) {
	for (i = 1; i < NF; i++) if ($i ~ "\"" name "\"") { gsub(/[{}"]/, "", $(i + 1)); return $(i + 1) }
	return ""
}
{
	key = field("provider") "\t" field("what") "\t" field("bytes"); us = field("p50_us") + 0
	if (field("verified") == "false") wrong[key] = 1
	if (field("op") == "fabric-c") { if (!(key in c)) { order[++n] = key; c[key] = us } if (us < c[key]) c[key] = us }
	else { if (!(key in go) || us < go[key]) go[key] = us }
}
END {
	print "provider\twhat\tbytes\tC us\tGo us\tGo / C\tGo GB/s"
	for (i = 1; i <= n; i++) if (order[i] in go) {
		split(order[i], part, "\t")
		printf "%s\t%.2f\t%.2f\t%.2f\t%.2f%s\n", order[i], c[order[i]], go[order[i]], go[order[i]] / c[order[i]],
			part[3] / go[order[i]] / 1000, wrong[order[i]] ? "\tWRONG" : ""
	}
}' "$rows" | if command -v column >/dev/null 2>&1; then column -t -s "$(printf '\t')"; else cat; fi
