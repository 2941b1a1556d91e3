#!/bin/sh
# Tests the Python package on the C library; arguments are pytest's. Exits with 77, and the reason
# in build/logs/venv.reason, where that is not possible.
set -eu
. "$(dirname "$0")/env.sh"

python=$(sh scripts/venv.sh)
compiler=$(go env CC)
command -v "${compiler%% *}" >/dev/null 2>&1 || {
	printf 'no C compiler\n' >"$build/logs/venv.reason"
	exit 77
}
sh scripts/clib.sh
# Ranks that are processes or threads have no processors to spare for threads of PyTorch's.
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$root/python" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
cd python
exec "$python" -m pytest -o cache_dir="$build/pytest" --junitxml="$build/logs/pytest.xml" "$@"
