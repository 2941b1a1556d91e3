#!/bin/sh
# Makes build/python, an environment with the pinned packages of python.txt, whose hashes are checked, and prints the path of its interpreter. PyTorch is
# seen in it where WEFT_PYTHON, or what python.sh has set up, has it. Where it cannot be had, writes why to build/logs/venv.reason and exits with 77.
set -eu
. "$(dirname "$0")/env.sh"

venv=$build/python
wanted=$root/scripts/python.txt
log=$build/logs/venv.log

unavailable() {
	printf '%s\n' "$*" >"$build/logs/venv.reason"
	exit 77
}

: >"$log"
torch=${WEFT_PYTHON:-}
[ -n "$torch" ] || [ ! -f "$build/venv/requirements.txt" ] || torch=$build/venv/bin/python
base=${torch:-python3}
command -v "$base" >/dev/null 2>&1 || unavailable 'no python3'
"$base" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' || unavailable 'python3 is older than 3.11'

# The copy of python.txt is written last: it marks a complete environment and says of what.
if ! cmp -s "$wanted" "$venv/python.txt" || [ "$("$venv/bin/python" -V 2>&1)" != "$("$base" -V 2>&1)" ]; then
	rm -rf "$venv"
	if "$base" -m venv "$venv" >>"$log" 2>&1; then
		set -- "$venv/bin/python" -m pip
	elif "$base" -m pip --version >>"$log" 2>&1 && "$base" -m venv --clear --without-pip "$venv" >>"$log" 2>&1; then
		set -- "$base" -m pip --python "$venv/bin/python"
	else
		unavailable 'python3 has neither venv with pip, nor pip'
	fi
	printf 'installing what tests of Python need into build/python (40 MB)\n' >&2
	timeout "${WEFT_PIP_TIMEOUT:-900}" "$@" install --quiet --disable-pip-version-check --retries 2 --only-binary :all: --require-hashes \
		--requirement "$wanted" >>"$log" 2>&1 || {
		rm -rf "$venv"
		unavailable 'pip could not install numpy and pytest (no network? see build/logs/venv.log)'
	}
	cp "$wanted" "$venv/python.txt"
fi

# PyTorch is large: the environment that has it lends it.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
rm -f "$site/torch.pth"
[ -z "$torch" ] || "$torch" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/torch.pth"
printf '%s\n' "$venv/bin/python"
