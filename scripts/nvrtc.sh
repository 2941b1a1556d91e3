#!/bin/sh
# Puts NVRTC, the compiler for GPU kernels, into build/nvrtc: the pinned wheel of nvrtc.txt, whose hash is checked. Prints where the library is. WEFT_NVRTC
# names another one to use instead. Where it cannot be had, writes why to build/logs/nvrtc.reason and exits with 77.
set -eu
. "$(dirname "$0")/env.sh"

folder=$build/nvrtc
lib=$folder/nvidia/cu13/lib
wanted=$root/scripts/nvrtc.txt
log=$build/logs/nvrtc.log

unavailable() {
	printf '%s\n' "$*" >"$build/logs/nvrtc.reason"
	exit 77
}

if [ -n "${WEFT_NVRTC:-}" ]; then
	printf '%s\n' "$WEFT_NVRTC"
	exit 0
fi

# The copy of nvrtc.txt is written last: it marks a complete folder and says of what.
if cmp -s "$wanted" "$folder/nvrtc.txt"; then
	printf '%s\n' "$lib"
	exit 0
fi

: >"$log"
command -v python3 >/dev/null 2>&1 || unavailable 'no python3, whose pip would fetch it'
pip=
if [ -x "$build/venv/bin/python" ] && "$build/venv/bin/python" -m pip --version >>"$log" 2>&1; then
	pip=$build/venv/bin/python
elif python3 -m pip --version >>"$log" 2>&1; then
	pip=python3
elif python3 -m venv "$build/pip" >>"$log" 2>&1; then
	pip=$build/pip/bin/python
else
	unavailable 'python3 has neither pip, nor venv with pip'
fi

printf 'fetching NVRTC into build/nvrtc (90 MB)\n' >&2
rm -rf "$folder"
timeout "${WEFT_PIP_TIMEOUT:-900}" "$pip" -m pip install --quiet --disable-pip-version-check --retries 2 --no-deps --require-hashes \
	--target "$folder" --requirement "$wanted" >>"$log" 2>&1 || {
	rm -rf "$folder"
	unavailable 'pip could not install nvidia-cuda-nvrtc (no network, or another platform? see build/logs/nvrtc.log)'
}
cp "$wanted" "$folder/nvrtc.txt"
printf '%s\n' "$lib"
