#!/bin/sh
# Tests the Python package on the C library; arguments are pytest's. Exits with 77, and the reason in build/logs/venv.reason, where that is not possible.
set -eu
. "$(dirname "$0")/env.sh"

python=$(sh scripts/venv.sh)
compiler=$(go env CC)
command -v "${compiler%% *}" >/dev/null 2>&1 || {
	printf 'no C compiler\n' >"$build/logs/venv.reason"
	exit 77
}
sh scripts/clib.sh
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$root/python"
cd python
exec "$python" -m pytest -o cache_dir="$build/python/pytest" "$@"
