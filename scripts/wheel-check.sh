#!/bin/sh
# wheel-check.sh PYTHON FOLDER: installs the wheels of a folder into an empty environment of an
# interpreter, and has two ranks, started by the command that came with them, add up an array.
set -eu
folder=$2
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
cd "$venv"
unset PYTHONPATH WEFT_LIBRARY

"$1" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-index --find-links "$folder" weft
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-index --no-deps --find-links "$folder" \
	weft-deep-ep weft-mscclpp
cat >program.py <<'PY'
import array, importlib, importlib.metadata, pkgutil, sys
import weft

version = importlib.metadata.version("weft")
assert weft.__version__ == version, (weft.__version__, version)
for name in ("weft-deep-ep", "weft-mscclpp"):
    assert importlib.metadata.version(name) == version, name
for module in pkgutil.walk_packages(weft.__path__, "weft."):
    if not module.name.startswith(("weft.torch", "weft._buffer", "weft.__main__", "weft.libweft")):
        importlib.import_module(module.name)
with weft.join(deadline=60) as comm, weft.Group(comm) as group:
    total = memoryview(group.all_reduce(array.array("f", [comm.rank + 1.0] * 3))).cast("B").cast("f").tolist()
    assert comm.ranks == 2 and total == [3.0] * 3, total
if comm.rank == 0:
    print("Python %d.%d.%d:" % sys.version_info[:3], "weft", version, "all-reduce of 2 ranks", total)
PY
[ "$(venv/bin/weft --version)" = "$(venv/bin/python -m weft --version)" ]
venv/bin/weft doctor >/dev/null
venv/bin/weft run -n 2 -- venv/bin/python program.py
