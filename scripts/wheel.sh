#!/bin/sh
# Builds the wheels of the Python packages, with the C library inside, into dist/ or the folder that
# is given. It needs Python 3.11 and a C compiler.
set -eu
folder=${1:-}
. "$(dirname "$0")/env.sh"

sh scripts/clib.sh
"${WEFT_PYTHON:-python3}" python/backend.py "${folder:-$root/dist}"
