#!/bin/sh
# Builds into build/gpu what a host without Go needs to run the tests: the command line, one static test program a
# package with its testdata, compressed, and run.sh, which unpacks and runs them. GOARCH picks another architecture.
set -eu
. "$(dirname "$0")/env.sh"

bundle=$build/gpu
module=$(go list -m)
export GOOS=linux CGO_ENABLED=0

rm -rf "$bundle"
mkdir -p "$bundle/tests"
go build -trimpath -ldflags='-s -w' -o "$bundle/weft" ./cmd/weft

# The command line's own parts and the examples are the same on every host; what carries tensors is not.
go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}' ./... |
	while read -r package dir; do
		case $package in
		'' | "$module"/cmd/* | "$module"/examples/*) continue ;;
		esac
		name=${package#"$module"}
		name=${name#/}
		name=${name:-weft}
		mkdir -p "$bundle/tests/$name"
		go test -c -trimpath -ldflags='-s -w' -o "$bundle/tests/$name/run.test" "$package"
		gzip -9 -n "$bundle/tests/$name/run.test"
		[ ! -d "$dir/testdata" ] || cp -R "$dir/testdata" "$bundle/tests/$name/"
	done

cp scripts/gpu-run.sh "$bundle/run.sh"
chmod 755 "$bundle/run.sh"
size=$(du -sk "$bundle" | cut -f 1)
printf 'build/gpu: %d programs, %d MiB; copy it to the host and start run.sh there\n' \
	"$(find "$bundle" -name run.test.gz | wc -l)" "$((size / 1024))"
[ "$size" -le 40960 ] || fail 'the bundle is larger than 40 MiB'
