#!/bin/sh
# Puts Zig, with whose C compiler releases are built, into the user's cache directory: the pinned
# wheel of zig.txt, whose hash is checked. Prints the path of the program. Where it cannot be had,
# writes why to build/logs/zig.reason and exits with 77.
set -eu
. "$(dirname "$0")/env.sh"
. scripts/keep.sh

wanted=$root/scripts/zig.txt
log=$build/logs/zig.log

unavailable() {
	printf '%s\n' "$*" >"$build/logs/zig.reason"
	exit 77
}

: >"$log"
command -v python3 >/dev/null 2>&1 || unavailable 'no python3, whose pip would fetch it'
folder=$kept/zig-$(identity "$wanted" "$(uname -sm)")
keep "$folder" fetch "$folder" 'Zig (420 MB)'
printf '%s\n' "$folder/ziglang/zig"
