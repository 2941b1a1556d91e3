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

if [ -n "${WEFT_NVRTC:-}" ]; then
	printf '%s\n' "$WEFT_NVRTC"
	exit 0
fi

: >"$log"
command -v python3 >/dev/null 2>&1 || unavailable 'no python3, whose pip would fetch it'
folder=$kept/nvrtc-$(identity "$wanted" "$(uname -sm)")
keep "$folder" fetch "$folder" 'NVRTC (90 MB)'
printf '%s\n' "$folder/nvidia/cu13/lib"
