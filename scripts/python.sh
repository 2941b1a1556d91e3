#!/bin/sh
# Makes build/venv, with the packages of requirements.txt, and prints the path of its interpreter. WEFT_PYTHON names
# an interpreter to use instead. Where it cannot be had, writes why to build/logs/python.reason and exits with 77.
set -eu
. "$(dirname "$0")/env.sh"

venv=$build/venv
wanted=$root/scripts/requirements.txt
log=$build/logs/python.log

unavailable() {
	printf '%s\n' "$*" >"$build/logs/python.reason"
	exit 77
}

has_torch() {
	"$1" -c 'import torch.distributed as d; raise SystemExit(not d.is_available())' >>"$log" 2>&1
}

: >"$log"
if [ -n "${WEFT_PYTHON:-}" ]; then
	has_torch "$WEFT_PYTHON" || unavailable "WEFT_PYTHON=$WEFT_PYTHON cannot import torch.distributed"
	printf '%s\n' "$WEFT_PYTHON"
	exit 0
fi

# The copy of requirements.txt is written last: it marks a complete environment and says of what.
if cmp -s "$wanted" "$venv/requirements.txt"; then
	printf '%s\n' "$venv/bin/python"
	exit 0
fi

command -v python3 >/dev/null 2>&1 || unavailable 'no python3'
python3 -c 'import sys; raise SystemExit(sys.version_info < (3, 10))' || unavailable 'python3 is older than 3.10'

rm -rf "$venv"
# Distributions that split venv's pip into a package of its own still allow an environment without one, which their
# own pip can fill.
if python3 -m venv "$venv" >>"$log" 2>&1; then
	set -- "$venv/bin/python" -m pip
elif python3 -m pip --version >>"$log" 2>&1 && python3 -m venv --clear --without-pip "$venv" >>"$log" 2>&1; then
	set -- python3 -m pip --python "$venv/bin/python"
else
	unavailable 'python3 has neither venv with pip, nor pip'
fi

printf 'installing %s into build/venv (4.7 GB, a minute or more)\n' "$(tr '\n' ' ' <"$wanted")" >&2
# Wheels of gigabytes are unpacked through TMPDIR, and /tmp is often a small memory file system.
mkdir -p "$build/tmp"
status=0
TMPDIR=$build/tmp timeout "${WEFT_PIP_TIMEOUT:-900}" "$@" install --quiet --disable-pip-version-check --retries 2 \
	--requirement "$wanted" >>"$log" 2>&1 || status=$?
rm -rf "$build/tmp"
if [ "$status" -ne 0 ] || ! has_torch "$venv/bin/python"; then
	rm -rf "$venv"
	unavailable "pip could not install $(tr '\n' ' ' <"$wanted")(no network or no disk space? see build/logs/python.log)"
fi
cp "$wanted" "$venv/requirements.txt"
printf '%s\n' "$venv/bin/python"
