#!/bin/sh
# Builds into build/gpu what a host without Go needs to run the tests and benchmarks: the command
# line, a test program for each package with its testdata, and the GPU kernels, compiled where NVRTC
# can be had, all compressed; and run.sh, which runs them. Kernels of tests and examples are
# compiled on the host. The programs need glibc. GOARCH picks another architecture; WEFT_ARCHS other
# GPUs. WEFT_RANKS=2,3,4 adds the kernels of collectives and plans among so many ranks, which take 10 minutes
# on 2 cores and 4 MiB, and spare the host that time.
set -eu
. "$(dirname "$0")/env.sh"

bundle=$build/gpu
module=$(go list -m)
archs=${WEFT_ARCHS:-sm_90a,sm_100a,sm_80}
kernels=0

rm -rf "$bundle"
mkdir -p "$bundle/tests"

# pack FOLDER: kernels are much alike, and so are programs. What looks back 64 MiB, over several of them, makes the
# bundle half as large as what looks back 8.
pack() {
	tar -C "$bundle" -cf - "$1" | xz -9 -T 1 >"$bundle/$1.tar.xz"
	rm -rf "${bundle:?}/$1"
}

# The kernels are the same whatever the host's architecture, so this host's own program compiles
# them. What it compiles is kept for the next time.
status=0
nvrtc=$(sh scripts/nvrtc.sh) || status=$?
case $status in
0)
	(unset GOOS GOARCH && sh scripts/build.sh weft)
	WEFT_NVRTC=$nvrtc WEFT_CACHE= WEFT_CACHE_DIR=$build/kernels \
		"$build/weft" compile --arch "$archs" ${WEFT_RANKS:+--ranks "$WEFT_RANKS"} --out "$bundle/cache" >"$build/logs/kernels.log" || {
		cat "$build/logs/kernels.log" >&2
		fail 'the kernels could not be compiled'
	}
	tail -n 1 "$build/logs/kernels.log"
	kernels=$(find "$bundle/cache" -name '*.cubin' | wc -l)
	pack cache
	;;
77) printf 'no compiled kernels: %s\n' "$(cat "$build/logs/nvrtc.reason")" ;;
*) fail 'NVRTC could not be had' ;;
esac

export GOOS=linux CGO_ENABLED=0
go build -trimpath -ldflags='-s -w' -o "$bundle/weft" ./cmd/weft
gzip -9 -n "$bundle/weft"

# The packages some of whose tests run on real GPUs, and no more: the bundle is small, so that it is carried quickly.
go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}' ./... |
	while read -r package dir; do
		case $package in
		'' | "$module"/cmd/* | "$module"/scripts) continue ;;
		esac
		grep -qE 'ranktest\.Real\(|WEFT_REQUIRE_GPU' "$dir"/*_test.go || continue
		name=${package#"$module"}
		name=${name#/}
		name=${name:-weft}
		mkdir -p "$bundle/tests/$name"
		go test -c -trimpath -ldflags='-s -w' -o "$bundle/tests/$name/run.test" "$package"
		[ ! -d "$dir/testdata" ] || cp -R "$dir/testdata" "$bundle/tests/$name/"
	done
programs=$(find "$bundle/tests" -name run.test | wc -l)
pack tests

# The NCCL EP face, whose test is in C. It needs a compiler for the host that it is to run on.
compiler=$(go env CC)
if [ "$(go env GOARCH)" = "$(go env GOHOSTARCH)" ] && command -v "${compiler%% *}" >/dev/null 2>&1; then
	mkdir "$bundle/nccl-ep"
	sh scripts/clib.sh "$bundle/nccl-ep"
	$compiler -std=c11 -O1 -Iclib/testdata -I"$bundle/nccl-ep" -o "$bundle/nccl-ep/run" clib/testdata/nccl_ep.c -L"$bundle/nccl-ep" -Wl,-rpath,'$ORIGIN' \
		-lnccl_ep -lweft -lpthread -ldl
	$compiler -std=c11 -O1 -Iclib/testdata -I"$bundle/nccl-ep" -o "$bundle/nccl-ep/c" clib/testdata/gpus.c -L"$bundle/nccl-ep" -Wl,-rpath,'$ORIGIN' -lweft -lpthread -ldl
	(cd "$bundle/nccl-ep" && rm -f ./*.h ./*.pc ./*.a && gzip -9 -n ./*)
	# The Python packages and their tests use the same library, and reach other hosts by libfabric, which few machines have.
	if libfabric=$(sh scripts/libfabric.sh); then
		[ ! -d "$libfabric" ] || libfabric=$libfabric/libfabric.so.1
		gzip -9 -n <"$libfabric" >"$bundle/libfabric.so.1.gz"
	else
		printf 'without libfabric: %s\n' "$(cat "$build/logs/libfabric.reason")"
	fi
	tar --exclude '__pycache__' --exclude '*.so' -cf - python | gzip -9 -n >"$bundle/python.tar.gz"
else
	printf 'without the NCCL EP face and Python: there is no C compiler for %s\n' "$(go env GOARCH)"
fi

cp scripts/gpu-run.sh "$bundle/run.sh"
cp scripts/gpu-several.sh "$bundle/several.sh"
cp scripts/gpu-several.txt "$bundle/several.txt"
git rev-parse --short HEAD >"$bundle/build" 2>/dev/null || rm -f "$bundle/build" # run.sh says it in its results
chmod 755 "$bundle/run.sh"
size=$(du -sk "$bundle" | cut -f 1)
printf 'build/gpu: %d programs, %d kernels, %d MiB; copy it to the host and start run.sh there\n' \
	"$programs" "$kernels" "$((size / 1024))"
[ "$size" -le 40960 ] || fail 'the bundle is larger than 40 MiB'
