#!/bin/sh
# Times an all-reduce between two hosts, which are network namespaces of this machine, against Gloo, Open MPI and a
# bare write with data of libfabric from C, and two-level expert parallelism against streams from C, in interleaved
# rounds. Of each row the best round counts.
#
# Peers are fetched and built outside of the repository's files, as bench-peers and bench-fabric do. One that cannot
# be had, or does not start, is skipped by name. ROUNDS, SECONDS_EACH, SIZES and TOKENS change what is run.
set -eu
. "$(dirname "$0")/env.sh"

rounds=${ROUNDS:-5}
seconds=${SECONDS_EACH:-1}
sizes=${SIZES:-8 65536 1048576}
tokens=${TOKENS:-512}
# Bytes of the chunks in which rows go to another host: 19 rows of 7168 elements of bf16 (ep/internal/pull, chunkBytes).
chunk=272384
log=$build/logs/bench-hosts.log
rows=$build/logs/bench-hosts.jsonl
mkdir -p "$build/bin"
: >"$log"
: >"$rows"

folder=$(sh scripts/libfabric.sh) || fail "no libfabric: $(cat "$build/logs/libfabric.reason")"
export WEFT_LIBFABRIC="$folder"
sh scripts/build.sh weft

skip() { printf 'skipped: %s: %s\n' "$1" "$2" >&2; }

# in_hosts PROGRAM...: a process of it in each of two hosts. They are not pinned: what rank 0 starts for both would
# share one processor.
in_hosts() { timeout 120 "$build/weft" run --bind off --no-prefix --hosts-by-namespace 2 -n 2 "$@"; }

peers=
if sh scripts/fabric-c.sh "$folder" 2>>"$log"; then
	peers="$peers fabric-c"
else
	skip fabric-c "$(tail -n 1 "$log")"
fi
if python=$(sh scripts/python.sh); then
	peers="$peers gloo"
else
	skip gloo "$(cat "$build/logs/python.reason")"
fi
mpi=
for name in .openmpi ''; do
	if command -v "mpicc$name" >/dev/null 2>&1 && "mpirun$name" --version 2>/dev/null | grep -q 'Open MPI'; then
		mpi=mpirun$name
		break
	fi
done
if [ -n "$mpi" ] && "mpicc$name" -O3 -march=native scripts/peers/mpi.c -o "$build/bin/collective.openmpi" >>"$log" 2>&1; then
	peers="$peers openmpi"
else
	skip openmpi 'no mpicc and mpirun of it (packages openmpi-bin libopenmpi-dev)'
fi

meeting=$(mktemp -d)
trap 'rm -rf "$meeting"' EXIT

# What rank 0 runs, when rank 1 has said which process it is. Rank 1 lends its namespace until then.
cat >"$meeting/pair.sh" <<'PAIR'
if [ "$WEFT_RANK" = 1 ]; then
	echo $$ >"$MEETING/pid.new" && mv "$MEETING/pid.new" "$MEETING/pid"
	while [ ! -e "$MEETING/done" ]; do sleep 0.1; done
	exit 0
fi
trap ': >"$MEETING/done"' EXIT
while [ ! -e "$MEETING/pid" ]; do sleep 0.1; done
other=$(cat "$MEETING/pid")
OTHER_NAMESPACE=/proc/$other/ns/net OTHER_ADDRESS=10.77.0.2 OTHER=$other
export OTHER_NAMESPACE OTHER_ADDRESS OTHER
"$@"
PAIR

# Open MPI starts its daemon on another host by this, in place of ssh.
cat >"$meeting/agent.sh" <<'AGENT'
#!/bin/sh
shift
exec nsenter --net="/proc/$OTHER/ns/net" sh -c "$*"
AGENT
chmod +x "$meeting/agent.sh"

run_fabric_c() {
	LD_LIBRARY_PATH=$folder in_hosts sh "$meeting/pair.sh" "$build/bin/fabric-c" tcp 10.77.0.1 "$chunk"
}
run_openmpi() {
	OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 in_hosts sh "$meeting/pair.sh" \
		"$mpi" --host 10.77.0.1:1,10.77.0.2:1 -n 2 --bind-to none --mca btl tcp,self --mca pml ob1 \
		--mca plm_rsh_agent "$meeting/agent.sh" --mca oob_tcp_if_include weft --mca btl_tcp_if_include weft \
		"$build/bin/collective.openmpi" openmpi allreduce "$seconds" $sizes
}

for round in $(seq "$rounds"); do
	printf 'round %d of %d\n' "$round" "$rounds" >&2
	for peer in weft $peers; do
		export MEETING="$meeting/$peer.$round"
		mkdir "$MEETING"
		case $peer in
		weft)
			in_hosts "$build/weft" bench fabric --provider tcp --sizes 4096 --json &&
				in_hosts "$build/weft" bench allreduce --time "${seconds}s" \
					--sizes "$(printf '%s' "$sizes" | tr ' ' ,)" --json &&
				in_hosts "$build/weft" bench ep --mode ht --tokens "$tokens" --hidden 7168 --topk 8 --experts 64 \
					--dtype bf16 --time "${seconds}s" --json
			;;
		fabric-c) run_fabric_c ;;
		gloo)
			# shellcheck disable=SC2086 # one argument a size
			in_hosts "$python" -W ignore scripts/peers/gloo.py allreduce 2 "$seconds" $sizes
			;;
		openmpi) run_openmpi ;;
		esac 2>>"$log" | grep '^{' >>"$rows" || {
			skip "$peer" 'it did not end well: see build/logs/bench-hosts.log'
			peers=$(printf '%s' "$peers" | sed "s/ $peer//")
		}
	done
done

awk -F '[,:]' '
function field(name,    i) {
	for (i = 1; i < NF; i++) if ($i ~ "\"" name "\"") { gsub(/[{}" ]/, "", $(i + 1)); return $(i + 1) }
	return ""
}
{
	if (field("op") == "prepare") next
	if (field("op") == "dispatch" || field("op") == "combine") {
		if (field("verified") == "false") wrong["two-level"] = 1
		both += field("min_us")
		usual += field("p50_us")
		sent += field("wire_bytes")
		if (field("op") == "combine") {
			if (!two || both < two) two = both
			if (!median || usual < median) median = usual
			moved = sent
			both = usual = sent = 0
		}
		next
	}
	if (field("op") ~ /^fabric/) {
		what = field("what")
		if (field("op") == "fabric-c" && (what == "stream" || what == "exchange")) {
			rate = field("bytes") / field("p50_us")
			if (rate > most[what]) most[what] = rate
			next
		}
		if (what != "signal" && what != "socket") next
		key = (field("op") == "fabric-c" ? "C" : "Go") "\t" what ", one way\t"
	} else key = field("engine") "\tallreduce\t" field("bytes")
	us = field("p50_us") + 0
	if (field("verified") == "false") wrong[key] = 1
	if (!(key in best)) { order[++n] = key; best[key] = us }
	if (us < best[key]) best[key] = us
}
END {
	print "engine\twhat\tbytes\tus"
	for (i = 1; i <= n; i++) printf "%s\t%.2f%s\n", order[i], best[order[i]], wrong[order[i]] ? "\tWRONG" : ""
	if (!two) exit
	printf "weft\tdispatch and combine, p50\t%d\t%.2f%s\n", moved, median, wrong["two-level"] ? "\tWRONG" : ""
	printf "weft\tdispatch and combine, best\t%d\t%.2f\n", moved, two
	if (!most["stream"] || !most["exchange"]) exit
	# The bytes of both ranks, by a stream that has all processors to itself, and those of each by streams both ways.
	floor["bytes of both by a stream"] = 2 * moved / most["stream"]
	floor["bytes of each, both ways at once"] = moved / most["exchange"]
	for (what in floor)
		printf "C\t%s\t%d\t%.2f\tover the best of weft: %.2f\n", what, moved, floor[what], floor[what] / two
}' "$rows" | if command -v column >/dev/null 2>&1; then column -t -s "$(printf '\t')"; else cat; fi
