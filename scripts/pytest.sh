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
# A run has one processor, so there are two, of files that take equally long: the second has those that
# start programs, and others. Its output comes at the end.
second='tests/test_docs.py tests/test_elastic.py tests/test_gpu.py tests/test_mscclpp.py tests/test_wheel.py'
ignored=
for file in $second; do
	ignored="$ignored --ignore=$file"
done
# shellcheck disable=SC2086 # they are several arguments
run pytest-programs $second >"$build/logs/pytest-programs.log" 2>&1 &
programs=$!
trap 'kill "$programs" 2>/dev/null' INT TERM
status=0
# shellcheck disable=SC2086
(run pytest $ignored) || status=$?
wait "$programs" || status=$?
cat "$build/logs/pytest-programs.log"
exit "$status"
