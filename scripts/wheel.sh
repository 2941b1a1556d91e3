#!/bin/sh
# Builds the wheels of the Python packages, with the C library and the command line inside, into dist/
# or the folder that is given. It needs Python 3.10 and a C compiler. With GOARCH, CC and AR it builds
# for another machine.
set -eu
folder=${1:-}
. "$(dirname "$0")/env.sh"

parts=$build/wheel/$(go env GOARCH)
sh scripts/clib.sh "$parts" >/dev/null
sh scripts/command.sh "$parts/weft"
sh scripts/notices.sh "$parts/NOTICES" "$parts/weft" "$parts/libweft.so"
export WEFT_LIBRARY="$parts/libweft.so" WEFT_NATIVE="$parts/_native.abi3.so" WEFT_COMMAND="$parts/weft" WEFT_NOTICES="$parts/NOTICES"
"${WEFT_PYTHON:-python3}" python/backend.py "${folder:-$root/dist}"
