#!/bin/sh
# Tests the Python package with several versions of PyTorch: those that are given, or all of
# torch.txt, each with the Python that stands beside it where this machine has that, and otherwise
# with the newest one that it has. Each is installed for itself and deleted afterwards: 5 to 7 GB of
# disk at a time, and 10 minutes, are enough.
set -eu
. "$(dirname "$0")/env.sh"
. scripts/keep.sh
. scripts/parts.sh

log=$build/logs/torch.log
wanted=$root/scripts/torch.txt
room=10000000 # KiB: an environment, and what pip unpacks meanwhile

unavailable() {
	printf '%s\n' "$*"
	exit 1
}

# interpreter VERSION: the Python to test a PyTorch with.
interpreter() {
	minor=$(sed -n "s/^$1 //p" "$wanted")
	sh scripts/pythons.sh | while read -r python; do
		"$python" -c "import sys; print(int('%d.%d' % sys.version_info[:2] == '$minor'), sys.executable)"
	done | sort -s -k 1,1n | tail -n 1 | cut -d ' ' -f 2-
}

torch_part() {
	[ "$(df -Pk "$build" | awk 'NR == 2 { print $4 }')" -ge "$room" ] || {
		printf 'needs 10 GB in %s\n' "$build"
		return 1
	}
	python=$(interpreter "$version")
	[ -n "$python" ] || unavailable 'no Python from 3.10 to 3.14'
	venv=$build/torch/$version
	rm -rf "$venv"
	mkdir -p "$build/torch"
	trap 'rm -rf "$venv"' EXIT
	environment "$python" "$venv" && mkdir "$venv/tmp" || return
	TMPDIR=$venv/tmp install --no-cache-dir "torch==$version" numpy pytest ml-dtypes ||
		unavailable "pip could not install torch $version (see $log)"
	rm -rf "$venv/tmp"
	"$venv/bin/python" -W ignore -c 'import sys, torch; print("torch", torch.__version__, "Python", sys.version.split()[0])'
	sh scripts/clib.sh >/dev/null || return
	cd python && PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$root/python" OMP_NUM_THREADS=1 \
		timeout 1200 "$venv/bin/python" -m pytest -o cache_dir="$venv/cache" \
		tests/test_torch.py tests/test_dlpack.py tests/test_training.py tests/test_deep_ep.py tests/test_mscclpp.py \
		tests/test_communicator.py tests/test_compiled.py tests/test_wheel.py
}

: >"$log"
# shellcheck disable=SC2046 # one argument for each version
[ "$#" -gt 0 ] || set -- $(sed -n 's/^\([0-9][0-9.]*\) .*/\1/p' "$wanted")
for version in "$@"; do
	# What a part sets up goes when it ends.
	part "torch-$version" eval '(torch_part)'
done
summary
