#!/bin/sh
# Makes an environment with the pinned packages of python.txt, whose hashes are checked, in the
# user's cache directory, and prints the path of its interpreter. PyTorch is seen in it where
# WEFT_PYTHON, or what python.sh has set up, has it. Where it cannot be had, writes why to
# build/logs/venv.reason and exits with 77.
set -eu
. "$(dirname "$0")/env.sh"
. scripts/keep.sh

wanted=$root/scripts/python.txt
log=$build/logs/venv.log

unavailable() {
	printf '%s\n' "$*" >"$build/logs/venv.reason"
	exit 77
}

# PyTorch is large: the environment that has it lends it.
fill() {
	printf 'installing what tests of Python need into %s (40 MB)\n' "$venv" >&2
	environment "$base" "$1" || return
	install --only-binary :all: --require-hashes --requirement "$wanted" ||
		unavailable 'pip could not install numpy and pytest (no network? see build/logs/venv.log)'
	[ -z "$lent" ] || printf '%s\n' "$lent" >"$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
}

: >"$log"
torch=${WEFT_PYTHON:-$(sh scripts/python.sh kept)} || torch=
base=${torch:-python3}
command -v "$base" >/dev/null 2>&1 || unavailable 'no python3'
"$base" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' || unavailable 'python3 is older than 3.11'
lent=
[ -z "$torch" ] || lent=$("$torch" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
venv=$kept/python-$(identity "$wanted" "$(describe "$base")" "$lent")
keep "$venv" fill
printf '%s\n' "$venv/bin/python"
