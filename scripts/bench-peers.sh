#!/bin/sh
# Times collectives against Open MPI, MPICH and Gloo: 2 ranks, one a core, then 4 ranks, in
# interleaved rounds.
#
# Gloo comes with PyTorch (python.sh). The MPI libraries come from the Debian packages named below;
# they are installed where apt-get and root are at hand, and used where they are installed. A peer
# that cannot be had is skipped by name, as is a collective that weft bench refuses. OPS, RANKS, ROUNDS,
# SECONDS_EACH and SIZES change what is run.
set -eu
. "$(dirname "$0")/env.sh"

ops=${OPS:-allreduce allgather reducescatter alltoall broadcast reduce sendrecv}
rounds=${ROUNDS:-5}
seconds=${SECONDS_EACH:-0.2}
sizes=${SIZES:-8 64 512 4096 16384 65536 262144 1048576 4194304 16777216 67108864}
packages='openmpi-bin libopenmpi-dev mpich libmpich-dev'
log=$build/logs/peers.log
: >"$log"

# Both libraries call their tools mpicc and mpirun; only the suffixed names tell them apart.
have_mpi() {
	command -v "mpicc.$1" >/dev/null 2>&1 && command -v "mpirun.$1" >/dev/null 2>&1
}

if ! have_mpi openmpi || ! have_mpi mpich; then
	if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
		printf 'installing %s\n' "$packages"
		# shellcheck disable=SC2086 # one word a package
		{
			apt-get update -qq &&
				DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages gcc libc6-dev
		} >>"$log" 2>&1 || printf 'apt-get failed: see build/logs/peers.log\n'
	fi
fi

sh scripts/build.sh weft
CGO_ENABLED=0 go build -C tools -o "$build/bin/peers" ./peers

peers=
for name in openmpi mpich; do
	if ! have_mpi "$name"; then
		printf 'skipped: %s: no mpicc.%s and mpirun.%s (packages %s; installing them needs apt-get and root)\n' \
			"$name" "$name" "$name" "$packages"
	elif ! "mpicc.$name" -O3 -march=native scripts/peers/mpi.c -o "$build/bin/collective.$name" >>"$log" 2>&1; then
		printf 'skipped: %s: mpicc.%s failed: see build/logs/peers.log\n' "$name" "$name"
	else
		peers="$peers $name"
	fi
done
if python=$(sh scripts/python.sh); then
	peers="$peers gloo"
else
	printf 'skipped: gloo: %s\n' "$(cat "$build/logs/python.reason")"
fi

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl=^openib

# command_of ENGINE RANKS OP: how to run it. With a core for every rank each is bound to one; otherwise
# none is.
command_of() {
	if [ "$2" -le "$(getconf _NPROCESSORS_ONLN)" ]; then
		bind=core
	else
		bind=none
	fi
	case $1 in
	weft)
		printf '"%s/weft" bench %s --ranks %d --time %ss --sizes %s --json' \
			"$build" "$3" "$2" "$seconds" "$(printf '%s' "$sizes" | tr ' ' ,)"
		;;
	openmpi)
		printf 'mpirun.openmpi -n %d --oversubscribe --bind-to %s "%s/bin/collective.openmpi" openmpi %s %s %s' \
			"$2" "$bind" "$build" "$3" "$seconds" "$sizes"
		;;
	mpich)
		printf 'mpirun.mpich -n %d -bind-to %s "%s/bin/collective.mpich" mpich %s %s %s' \
			"$2" "$bind" "$build" "$3" "$seconds" "$sizes"
		;;
	gloo)
		printf '"%s" -W ignore "%s/scripts/peers/gloo.py" %s %d %s %s' \
			"$python" "$root" "$3" "$2" "$seconds" "$sizes"
		;;
	esac
}

for op in $ops; do
	if ! "$build/weft" bench "$op" --sizes 8 --iters 20 >>"$log" 2>&1; then
		printf 'skipped: %s: weft bench %s failed: see build/logs/peers.log\n' "$op" "$op"
		continue
	fi
	for ranks in ${RANKS:-2 4}; do
		set --
		for name in weft $peers; do
			set -- "$@" "$name=$(command_of "$name" "$ranks" "$op")"
		done
		"$build/bin/peers" -op "$op" -ranks "$ranks" -rounds "$rounds" "$@"
	done
done
