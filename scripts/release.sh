#!/bin/sh
# Builds a release of the commit that is checked out into dist/, and checks each part: the source
# archive, and from the archive alone the wheels for x86-64 and arm64, the command line for both, a
# bill of materials, and checksums. Equal commits give equal files. It needs git and Python with pip,
# which fetches Zig; qemu-user and arm64's C library, where they are installed, run what is for arm64.
# Named parts select some, after those before them have run: archive wheels commands bill needs
# version layers pythons again.
set -eu
. "$(dirname "$0")/env.sh"
. scripts/parts.sh

commit=$(git rev-parse HEAD) || fail 'a release is of a commit: it needs a clone, not a source archive'
[ -z "$(git status --porcelain)" ] || printf 'weft: what is not committed is no part of the release\n' >&2
python=$(sh scripts/pythons.sh | head -n 1)
[ -n "$python" ] || fail 'needs Python 3.10 or newer'
version=$(git show HEAD:VERSION)
zig=$(sh scripts/zig.sh) || fail "cannot build for glibc 2.28 and arm64: $(cat "$build/logs/zig.reason")"
export ZIG_GLOBAL_CACHE_DIR="$XDG_CACHE_HOME/weft/zig" ZIG_LOCAL_CACHE_DIR="$XDG_CACHE_HOME/weft/zig"
stem=weft-$version
dist=$root/dist
source=$build/release/$stem

# What depends on the clock, the zone, or this machine's settings would make files differ.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC0 GOFLAGS=-buildvcs=false

archive_part() {
	rm -rf "$dist" "$build/release"
	mkdir -p "$dist" "$build/release"
	git -c tar.umask=0022 archive --format=tar --prefix="$stem/" HEAD | gzip -n9 >"$dist/$stem.tar.gz" &&
		tar -xzf "$dist/$stem.tar.gz" -C "$build/release" &&
		[ "$(cat "$source/cmd/weft/commit.txt")" = "$commit" ]
}

# target ARCH: what the C compiler calls a machine of Go's, with the oldest glibc that is promised.
target() {
	case $1 in
	amd64) printf 'x86_64-linux-gnu.2.28' ;;
	arm64) printf 'aarch64-linux-gnu.2.28' ;;
	esac
}

# cross ARCH COMMAND...: runs a command that builds for a machine.
cross() {
	arch=$1
	shift
	env GOOS=linux GOARCH="$arch" CC="$zig cc -target $(target "$arch")" AR="$zig ar" WEFT_PYTHON="$python" "$@"
}

wheels_part() {
	for arch in amd64 arm64; do
		cross "$arch" sh "$source/scripts/wheel.sh" "$dist" || return
	done
}

commands_part() {
	for arch in amd64 arm64; do
		folder=$build/release/$stem-linux-$arch
		mkdir -p "$folder" &&
			cp "$source/build/wheel/$arch/weft" "$source/build/wheel/$arch/NOTICES" \
				"$source/LICENSE" "$source/CHANGELOG.md" "$folder" &&
			tar -C "$build/release" --sort=name --owner=0 --group=0 --numeric-owner --mode=u+w,go-w \
				--mtime="@$SOURCE_DATE_EPOCH" -cf - "${folder##*/}" | gzip -n9 >"$dist/${folder##*/}.tar.gz" || return
	done
}

bill_part() {
	set -- "$dist/$stem.tar.gz" "$dist"/weft_*.whl
	for pair in amd64:x86_64 arm64:aarch64; do
		parts=$source/build/wheel/${pair%:*}
		set -- "$@" "$(echo "$dist/$stem"-*"${pair#*:}.whl")=$parts/libweft.so,$parts/weft" \
			"$dist/$stem-linux-${pair%:*}.tar.gz=$parts/weft"
	done
	"$source/build/bin/sbom" -root "$source" -bill "$dist/$stem.cdx.json" -commit "$commit" -time "$SOURCE_DATE_EPOCH" "$@" &&
		(cd "$dist" && sha256sum -- *) >"$build/release/SHA256SUMS" && mv "$build/release/SHA256SUMS" "$dist" &&
		(cd "$dist" && sha256sum --quiet -c SHA256SUMS)
}

# What programs and libraries ask of the machine that loads them.
needs_part() {
	for pair in amd64:x86_64:X86-64 arm64:aarch64:AArch64; do
		arch=${pair%%:*} machine=${pair##*:}
		wheel=${pair#*:} wheel=$dist/$stem-py3-none-manylinux_2_28_${wheel%:*}.whl
		[ -f "$wheel" ] || {
			printf 'there is no %s\n' "$wheel"
			return 1
		}
		for file in libweft.so libnccl_ep.so _native.abi3.so weft; do
			file=$source/build/wheel/$arch/$file
			readelf -h "$file" | grep -q "Machine:.*$machine" || {
				printf '%s is not for %s\n' "$file" "$machine"
				return 1
			}
			newest=$(readelf -VW "$file" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
			[ "$(printf 'GLIBC_2.28\n%s\n' "$newest" | sort -V | tail -n 1)" = GLIBC_2.28 ] || {
				printf '%s needs %s\n' "$file" "$newest"
				return 1
			}
			strange=$(readelf -dW "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
				grep -vE '^(lib(c|pthread|dl)\.so\..|ld-linux.*)$') || true
			[ -z "$strange" ] || {
				printf '%s needs %s\n' "$file" "$strange"
				return 1
			}
			printf '%s for %s: %s\n' "${file##*/}" "$machine" "${newest:-no version of glibc}"
		done
	done
}

# Each Python of this machine installs this machine's wheel into an empty environment and runs ranks.
pythons_part() {
	sh scripts/pythons.sh | while read -r python; do
		sh scripts/wheel-check.sh "$python" "$dist" </dev/null || exit
	done || return
	here=$(sh scripts/pythons.sh | while read -r python; do "$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; done)
	for wanted in 3.10 3.11 3.12 3.13 3.14; do
		case $here in
		*"$wanted"*) ;;
		*) printf 'not run: no Python %s here\n' "$wanted" ;;
		esac
	done
}

# The commands that were packed say which release and commit they are of.
version_part() {
	for arch in amd64 arm64; do
		rm -rf "$build/release/unpacked" && mkdir "$build/release/unpacked" &&
			tar -xzf "$dist/$stem-linux-$arch.tar.gz" -C "$build/release/unpacked" || return
		runner=$(runner "$arch") || {
			printf 'not run: the command for %s (no qemu-user with its C library)\n' "$arch"
			continue
		}
		said=$($runner "$build/release/unpacked/$stem-linux-$arch/weft" --version) || return
		printf '%s: %s\n' "$arch" "$said"
		[ "$said" = "weft version $version $(printf '%.12s' "$commit")" ] || return
	done
}

# runner ARCH: the command that runs programs for a machine here; nothing for this one's.
runner() {
	[ "$1" != "$(go env GOHOSTARCH)" ] || return 0
	[ "$1" = arm64 ] && [ -e /usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1 ] || return
	for qemu in qemu-aarch64 qemu-aarch64-static; do
		if command -v "$qemu" >/dev/null 2>&1; then
			printf '%s -L /usr/aarch64-linux-gnu' "$qemu"
			return
		fi
	done
	return 1
}

# A layer of experts in C, one rank, on the libraries of both wheels.
layers_part() {
	for arch in amd64 arm64; do
		runner=$(runner "$arch") || {
			printf 'not run: the library for %s (no qemu-user with its C library)\n' "$arch"
			continue
		}
		parts=$source/build/wheel/$arch program=$build/release/layer-$arch
		# shellcheck disable=SC2086 # a command and its arguments
		$zig cc -O1 -target "$(target "$arch")" -o "$program" "$source/examples/c/moe_host.c" -I"$parts" -L"$parts" \
			-Wl,-rpath,"$parts" -lweft && timeout 120 $runner "$program" 1 || return
	done
}

# Built again in another folder, from the archive, everything is the same.
again_part() {
	mkdir "$build/release/again" && tar -xzf "$dist/$stem.tar.gz" -C "$build/release/again" || return
	for arch in amd64 arm64; do
		cross "$arch" sh "$build/release/again/$stem/scripts/wheel.sh" "$build/release/again/dist" || return
	done
	for wheel in "$build/release/again/dist"/*.whl; do
		cmp "$wheel" "$dist/${wheel##*/}" || return
	done
}

[ "$#" -gt 0 ] || set -- archive wheels commands bill needs version layers pythons again
for name in "$@"; do
	part "$name" "${name}_part"
	[ "$failures" -eq 0 ] || break
done
[ "$failures" -ne 0 ] || (cd "$dist" && printf '\n' && ls -l)
summary
