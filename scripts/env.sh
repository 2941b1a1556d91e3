# Sourced by every script here, from any directory: goes to the root of the repository, finds a Go
# that is new enough, and settles where everything is written. POSIX sh, because a machine with Go
# and make may have no bash.
# shellcheck shell=sh

cd "$(dirname "$0")/.." || exit 1
root=$PWD
build=$root/build

fail() {
	printf 'weft: %s\n' "$*" >&2
	exit 1
}

mkdir -p "$build/logs" 2>/dev/null || true
[ -w "$build/logs" ] || fail "cannot write to $build"

# What is built or fetched is no part of this module: "./..." stops at another go.mod.
[ -f "$build/go.mod" ] || printf 'module build\n' >"$build/go.mod"

command -v go >/dev/null 2>&1 || PATH=$PATH:/usr/local/go/bin:/usr/lib/go/bin
command -v go >/dev/null 2>&1 || fail 'needs Go, and found no "go" in PATH'

# Containers often run as a user without a home: the caches then go below build/.
for name in GOCACHE GOMODCACHE; do
	dir=$(cd / && go env "$name" 2>/dev/null) || dir=
	if [ "$dir" = off ] || [ -z "$dir" ] || ! mkdir -p "$dir" 2>/dev/null || [ ! -w "$dir" ]; then
		export "$name=$build/cache/$name"
		[ "$name" = GOCACHE ] || GOFLAGS="${GOFLAGS:-} -modcacherw"
	fi
done

case ${XDG_CACHE_HOME:-} in
/*) ;;
*) XDG_CACHE_HOME=${HOME:-/dev/null}/.cache ;; # where Go looks, too
esac
if ! mkdir -p "$XDG_CACHE_HOME" 2>/dev/null || [ ! -w "$XDG_CACHE_HOME" ]; then
	XDG_CACHE_HOME=$build/cache
fi
export XDG_CACHE_HOME

# A toolchain that is allowed to fetch a newer one does so at the first command run inside the
# module.
want=$(sed -n 's/^go //p' go.mod)
have=$(go env GOVERSION 2>"$build/logs/toolchain.log") || have=$(cd / && go env GOVERSION)
newest=$(printf '%s\n%s\n' "$want" "${have#go}" | sort -V | tail -n 1)
toolchain=$(cd / && go env GOTOOLCHAIN)
case $have in
"go$want"* | devel*) ;;
*)
	[ "$newest" = "${have#go}" ] ||
		fail "needs Go $want or newer and found $have${toolchain:+ (GOTOOLCHAIN=$toolchain)}: please install a newer Go"
	;;
esac

# Stamping the commit fails the build where git refuses the clone, as it does when someone else owns
# it.
git rev-parse --verify --quiet HEAD >/dev/null 2>&1 || GOFLAGS="${GOFLAGS:-} -buildvcs=false"

# Without paths of the clone in it a compiled package is the same for all clones, for copies of the tree, and for
# what is built to be installed. What debuggers read takes a seventh of the compiler's time.
case "${GOFLAGS:-}" in
*-trimpath*) ;;
*) GOFLAGS="${GOFLAGS:-} -trimpath -gcflags=all=-dwarf=false" ;;
esac

export GOFLAGS CGO_ENABLED="${CGO_ENABLED:-0}" PATH
