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

# run NAME ARGUMENTS...: is pytest from now on.
run() {
	name=$1
	shift
	exec "$python" -m pytest -o cache_dir="$build/pytest/$name" --junitxml="$build/logs/$name.xml" "$@"
}

[ "$#" -eq 0 ] || run pytest "$@"
# A run has one processor, so the files that start programs have one of their own. Their output comes
# at the end.
run pytest-programs tests/test_docs.py tests/test_elastic.py tests/test_gpu.py >"$build/logs/pytest-programs.log" 2>&1 &
programs=$!
trap 'kill "$programs" 2>/dev/null' INT TERM
status=0
(run pytest --ignore=tests/test_docs.py --ignore=tests/test_elastic.py --ignore=tests/test_gpu.py) || status=$?
wait "$programs" || status=$?
cat "$build/logs/pytest-programs.log"
exit "$status"
