#!/bin/sh
# Builds the C library: libweft.so, weft.h and weft.pc, into build/clib or the folder that is given. It needs a C compiler.
set -eu
folder=${1:-}
. "$(dirname "$0")/env.sh"

case $folder in
'') folder=$build/clib ;;
/*) ;;
*) fail "needs the whole path of a folder, not $folder" ;;
esac
compiler=$(go env CC)
command -v "${compiler%% *}" >/dev/null 2>&1 || fail "the C library needs a C compiler, and there is no $compiler"
mkdir -p "$folder"

CGO_ENABLED=1 go build -trimpath -buildmode=c-shared \
	-ldflags="-s -w -extldflags '-Wl,-soname,libweft.so -Wl,--version-script=$root/clib/version.map'" -o "$folder/libweft.so" ./clib
rm -f "$folder/libweft.h" # cgo's own, of functions that do not leave the library
cp clib/weft.h "$folder/weft.h"

version=$(sed -n 's/^#define WEFT_VERSION //p' clib/weft.h)
cat >"$folder/weft.pc" <<PC
prefix=\${pcfiledir}

Name: weft
Description: Tensors between the ranks of a machine-learning job
Version: $version
Cflags: -I\${prefix}
Libs: -L\${prefix} -Wl,-rpath,\${prefix} -lweft
PC
printf 'built %s, weft.h and weft.pc\n' "${folder#"$root"/}/libweft.so"
