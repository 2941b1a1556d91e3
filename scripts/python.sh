#!/bin/sh
# Makes an environment with the packages of requirements.txt in the user's cache directory, and
# prints the path of its interpreter; with "kept" only if it is there. WEFT_PYTHON names an
# interpreter to use instead. Where it cannot be had, writes why to build/logs/python.reason and
# exits with 77.
set -eu
. "$(dirname "$0")/env.sh"
. scripts/keep.sh

wanted=$root/scripts/requirements.txt
log=$build/logs/python.log

unavailable() {
	printf '%s\n' "$*" >"$build/logs/python.reason"
	exit 77
}

has_torch() {
	"$1" -c 'import torch.distributed as d; raise SystemExit(not d.is_available())' >>"$log" 2>&1
}

# Wheels of gigabytes are unpacked through TMPDIR, and /tmp is often a small memory file system.
fill() {
	packages=$(tr '\n' ' ' <"$wanted")
	printf 'installing %sinto %s (4.7 GB, a minute or more)\n' "$packages" "$venv" >&2
	environment python3 "$1" && mkdir "$1/tmp" || return
	export TMPDIR="$1/tmp"
	install --requirement "$wanted" && has_torch "$1/bin/python" ||
		unavailable "pip could not install $packages(no network or no disk space? see build/logs/python.log)"
	rm -rf "$1/tmp"
}

: >"$log"
if [ -n "${WEFT_PYTHON:-}" ]; then
	has_torch "$WEFT_PYTHON" || unavailable "WEFT_PYTHON=$WEFT_PYTHON cannot import torch.distributed"
	printf '%s\n' "$WEFT_PYTHON"
	exit 0
fi

command -v python3 >/dev/null 2>&1 || unavailable 'no python3'
python3 -c 'import sys; raise SystemExit(sys.version_info < (3, 10))' || unavailable 'python3 is older than 3.10'
venv=$kept/torch-$(identity "$wanted" "$(describe python3)")
if [ "${1:-}" = kept ] && [ ! -d "$venv" ]; then
	unavailable 'it has not been set up'
fi
keep "$venv" fill
printf '%s\n' "$venv/bin/python"
