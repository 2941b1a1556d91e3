#!/bin/sh
# Prints the interpreters of this machine that the Python package supports, one of each version from
# 3.10 to 3.14: those in PATH, and those that pyenv and uv keep.
set -eu

for minor in 10 11 12 13 14; do
	for python in "python3.$minor" python3 "${PYENV_ROOT:-${HOME:-}/.pyenv}/versions/3.$minor".*/bin/python3 \
		"${HOME:-}/.local/share/uv/python/cpython-3.$minor".*/bin/python3; do
		found=$("$python" -c "import ensurepip, sys, venv
if sys.version_info[:2] == (3, $minor): print(sys.executable)" 2>/dev/null) || continue
		if [ -n "$found" ]; then
			printf '%s\n' "$found"
			break
		fi
	done
done
