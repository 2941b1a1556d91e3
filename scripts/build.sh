#!/bin/sh
# Builds programs into build/: "weft" is the command line, any other name an example.
set -eu
. "$(dirname "$0")/env.sh"

for program in "$@"; do
	case $program in
	weft) package=./cmd/weft ;;
	*) package=./examples/$program ;;
	esac
	go build -o "$build/$program" "$package"
	printf 'built build/%s\n' "$program"
done
