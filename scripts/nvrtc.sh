#!/bin/sh
# Puts NVRTC, the compiler for GPU kernels, into the user's cache directory: the pinned wheel of
# nvrtc.txt, whose hash is checked. Prints where the library is. WEFT_NVRTC names another one to use
# instead. Where it cannot be had, writes why to build/logs/nvrtc.reason and exits with 77.
set -eu
. "$(dirname "$0")/env.sh"
. scripts/keep.sh

wanted=$root/scripts/nvrtc.txt
log=$build/logs/nvrtc.log

unavailable() {
	printf '%s\n' "$*" >"$build/logs/nvrtc.reason"
	exit 77
}

fill() {
	into=
	if python3 -m pip --version >>"$log" 2>&1; then
		pip=python3
	elif python3 -m venv "$1/pip" >>"$log" 2>&1; then
		pip=$1/pip/bin/python
	else
		unavailable 'python3 has neither pip, nor venv with pip'
	fi
	printf 'fetching NVRTC into %s (90 MB)\n' "$folder" >&2
	install --no-deps --require-hashes --target "$1" --requirement "$wanted" ||
		unavailable 'pip could not install nvidia-cuda-nvrtc (no network, or another platform? see build/logs/nvrtc.log)'
	rm -rf "$1/pip"
}

if [ -n "${WEFT_NVRTC:-}" ]; then
	printf '%s\n' "$WEFT_NVRTC"
	exit 0
fi

: >"$log"
command -v python3 >/dev/null 2>&1 || unavailable 'no python3, whose pip would fetch it'
folder=$kept/nvrtc-$(identity "$wanted" "$(uname -sm)")
keep "$folder" fill
printf '%s\n' "$folder/nvidia/cu13/lib"
