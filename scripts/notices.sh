#!/bin/sh
# Writes into the first file the licences of what is inside the programs and libraries that follow.
set -eu
. "$(dirname "$0")/env.sh"

unset GOARCH CC AR # the tool runs here, whatever they are for
go build -C tools -o "$build/bin/sbom" ./sbom
"$build/bin/sbom" -root . -notices "$@"
