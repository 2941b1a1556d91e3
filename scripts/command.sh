#!/bin/sh
# Builds the command line for others than this tree into the file that is given: without symbols and
# without this machine's paths. GOARCH names another machine.
set -eu
. "$(dirname "$0")/env.sh"

mkdir -p "$(dirname "$1")"
CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o "$1" ./cmd/weft
