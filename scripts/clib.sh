#!/bin/sh
# Builds the C library: libweft.so, weft.h and weft.pc, and the NCCL EP face: libnccl_ep.so,
# libnccl_ep.a, weft_nccl_ep.h and nccl_ep.pc, into build/clib or the folder that is given. It needs
# a C compiler.
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
# Programs find the library by this path wherever they run, if PKG_CONFIG_PATH has the whole path of
# this folder.
prefix=\${pcfiledir}

Name: weft
Description: Tensors between the ranks of a machine-learning job
Version: $version
Cflags: -I\${prefix}
Libs: -L\${prefix} -Wl,-rpath,\${prefix} -lweft
PC

# The NCCL EP face is plain C, which opens libweft.so when it runs.
objects=$folder/.objects
rm -rf "$objects" "$folder/libnccl_ep.a"
mkdir -p "$objects"
for source in clib/nccl/*.c; do
	object=$(basename "$source" .c).o
	$compiler -std=c11 -O2 -Wall -Wextra -Werror -fPIC -fvisibility=hidden -ffile-prefix-map="$root"=. -Iclib -c -o "$objects/nep_$object" "$source"
done
$compiler -shared -Wl,-soname,libnccl_ep.so -Wl,--version-script="$root/clib/nccl/version.map" -Wl,-z,defs -o "$folder/libnccl_ep.so" "$objects"/*.o -lpthread -ldl
$(go env AR) rcs "$folder/libnccl_ep.a" "$objects"/*.o
rm -rf "$objects"
cp clib/nccl/weft_nccl_ep.h "$folder/weft_nccl_ep.h"
version=$(sed -n 's/^#define NCCL_EP_VERSION \([0-9]*\).*/\1/p' clib/nccl/weft_nccl_ep.h)
cat >"$folder/nccl_ep.pc" <<PC
# Programs find the library by this path wherever they run, if PKG_CONFIG_PATH has the whole path of
# this folder.
prefix=\${pcfiledir}

Name: nccl_ep
Description: NCCL EP's functions over Weft
Version: $version
Cflags: -I\${prefix}
Libs: -L\${prefix} -Wl,-rpath,\${prefix} -lnccl_ep
Libs.private: -lpthread -ldl
PC
printf 'built libweft.so, weft.h, weft.pc, libnccl_ep.so, libnccl_ep.a, weft_nccl_ep.h and nccl_ep.pc in %s\n' "${folder#"$root"/}"
