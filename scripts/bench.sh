#!/bin/sh
# Measures the floors of this machine (cold memory copy, cache-line ping-pong) and every operation
# against them.
set -eu
. "$(dirname "$0")/env.sh"

sh scripts/build.sh weft
exec "$build/weft" bench all "$@"
