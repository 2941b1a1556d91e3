#!/bin/sh
# Regenerates the generated files. With "check", does so in a copy of the tree and compares,
# changing nothing.
set -eu
. "$(dirname "$0")/env.sh"

if [ "${1:-}" != check ]; then
	exec go generate ./...
fi

copy=$build/generate
rm -rf "$copy"
mkdir -p "$copy"
trap 'rm -rf "$copy"' EXIT
# The copy is a module of its own below build/, so commands run at the root do not see it.
tar --exclude=./build --exclude=./.git -cf - . | tar -xf - -C "$copy"
(cd "$copy" && go generate ./...)
if ! diff -r -x build -x .git . "$copy"; then
	fail 'generated files are not current: run "make generate"'
fi
