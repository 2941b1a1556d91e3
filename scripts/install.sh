#!/bin/sh
# Installs the C library, its NCCL EP face, their headers, the device headers, files for pkg-config and CMake, and the
# command line below PREFIX (/usr/local). DESTDIR stands before all paths, for packagers. It needs a C
# compiler. What it installed can be moved as a whole.
set -eu
. "$(dirname "$0")/env.sh"
. scripts/package-files.sh

prefix=${PREFIX:-/usr/local}
case $prefix in
/*) prefix=${prefix%/} ;;
*) fail "needs the whole path of a folder in PREFIX, not $prefix" ;;
esac
to=${DESTDIR:-}$prefix
built=$build/clib
sh scripts/clib.sh >/dev/null
sh scripts/command.sh "$build/install/weft"
sh scripts/notices.sh "$build/install/NOTICES" "$build/install/weft" "$built/libweft.so"

mkdir -p "$to" 2>/dev/null && [ -w "$to" ] ||
	fail "cannot write to $to: name another folder (make install PREFIX=\$HOME/.local), or install as a user who may"
# put MODE FOLDER FILE...
put() {
	mode=$1 folder=$to/$2
	shift 2
	mkdir -p "$folder"
	for file in "$@"; do
		# A program may run the old file: it is replaced, not written over.
		cp "$file" "$folder/.weft.$$" && chmod "$mode" "$folder/.weft.$$"
		mv -f "$folder/.weft.$$" "$folder/${file##*/}"
	done
}
put 755 lib "$built/libweft.so" "$built/libnccl_ep.so"
put 644 lib "$built/libnccl_ep.a"
put 644 include clib/weft.h clib/nccl/weft_nccl_ep.h
put 644 include/weft device/*.cuh
put 755 bin "$build/install/weft"
put 644 share/doc/weft LICENSE CHANGELOG.md "$build/install/NOTICES"
package_files "$to" lib include "$to/lib/pkgconfig" "$to/lib/cmake/weft" "$prefix"
printf 'installed the C library and the command weft %s below %s\n' "$(cat VERSION)" "$to"
