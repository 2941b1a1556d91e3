#!/bin/sh
# Builds build/bin/fabric-c, what "weft bench fabric" measures from C, with the libfabric of FOLDER. Its headers are the
# system's or, where apt-get is at hand, those of Debian's package, which is unpacked into build/ and not installed.
#   fabric-c.sh FOLDER
set -eu
. "$(dirname "$0")/env.sh"

log=$build/logs/fabric-c.log
mkdir -p "$build/bin"
: >"$log"
headers=
if ! printf '#include <rdma/fabric.h>\n' | cc -x c -fsyntax-only - >>"$log" 2>&1; then
	headers=$build/libfabric-dev
	if [ ! -d "$headers/usr/include/rdma" ]; then
		command -v apt-get >/dev/null 2>&1 || fail 'no headers of libfabric, and no apt-get that would fetch them'
		mkdir -p "$headers"
		(cd "$headers" && apt-get download libfabric-dev && dpkg -x libfabric-dev_*.deb .) >>"$log" 2>&1 ||
			fail 'apt-get could not fetch libfabric-dev: see build/logs/fabric-c.log'
	fi
fi
cc -O2 ${headers:+-I "$headers/usr/include"} scripts/peers/fabric.c -o "$build/bin/fabric-c" \
	"$1/libfabric.so.1" >>"$log" 2>&1 || fail 'cc failed: see build/logs/fabric-c.log'
