#!/bin/sh
# Builds the C library: libweft.so, weft.h and weft.pc, and the NCCL EP face: libnccl_ep.so,
# libnccl_ep.a, weft_nccl_ep.h and nccl_ep.pc, files for CMake, and the compiled part of the Python
# package, into build/clib or the folder that is given. It needs a C compiler, and no Python. With
# GOARCH, CC and AR it builds for another machine.
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

# Go's ID of a build depends on the folder, through the flags. Without one Go links again each time.
id=
[ -z "${SOURCE_DATE_EPOCH:-}" ] || id=-buildid=
CGO_ENABLED=1 go build -trimpath -buildmode=c-shared \
	-ldflags="-s -w $id -extldflags '-Wl,-soname,libweft.so -Wl,--version-script=$root/clib/version.map'" -o "$folder/libweft.so" ./clib
rm -f "$folder/libweft.h" # cgo's own, of functions that do not leave the library
cp clib/weft.h "$folder/weft.h"

# The NCCL EP face is plain C, which opens libweft.so when it runs.
objects=$folder/.objects
rm -rf "$objects" "$folder/libnccl_ep.a"
mkdir -p "$objects"
for source in clib/nccl/*.c; do
	object=$(basename "$source" .c).o
	$compiler -std=c11 -O2 -Wall -Wextra -Werror -fPIC -fvisibility=hidden -ffile-prefix-map="$root"=. -Iclib -c -o "$objects/nep_$object" "$source"
done
$compiler -shared -s -Wl,-soname,libnccl_ep.so -Wl,--version-script="$root/clib/nccl/version.map" -Wl,-z,defs -o "$folder/libnccl_ep.so" "$objects"/*.o -lpthread -ldl
$(go env AR) rcs "$folder/libnccl_ep.a" "$objects"/*.o
rm -rf "$objects"
# What it does not define is in the interpreter that loads it.
$compiler -std=c11 -O2 -Wall -Wextra -Werror -fPIC -fvisibility=hidden -ffile-prefix-map="$root"=. -Iclib -shared -s -o "$folder/_native.abi3.so" python/native/*.c
cp clib/nccl/weft_nccl_ep.h "$folder/weft_nccl_ep.h"
. scripts/package-files.sh
package_files "$folder" . . "$folder" "$folder"
printf 'built libweft.so, weft.h, libnccl_ep.so, libnccl_ep.a, weft_nccl_ep.h, _native.abi3.so, and files for pkg-config and CMake in %s\n' "${folder#"$root"/}"
