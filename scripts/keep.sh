# Sourced after env.sh by what sets up environments for tests: every clone can use them, so they are
# kept in the user's cache directory, in folders named after what they are made of.
# shellcheck shell=sh

kept=$XDG_CACHE_HOME/weft/tools

# identity FILE TEXT...: a short name for what a folder is made of.
identity() {
	{ cat "$1" && shift && printf '%s\n' "$@"; } | sha256sum | cut -c 1-16
}

# describe PYTHON: what an environment depends on of the interpreter that makes it.
describe() {
	"$1" -c 'import platform, sys; print(sys.version, sys.base_prefix, platform.machine())'
}

# keep FOLDER COMMAND...: has COMMAND make a new folder, whose path is its last argument, and names
# it FOLDER when it is whole, unless FOLDER is there. A second caller waits meanwhile. Folders that no
# run has used for a month go.
keep() {
	whole=$1
	shift
	mkdir -p "$kept" || return
	if [ ! -d "$whole" ]; then
		(
			if command -v flock >/dev/null 2>&1; then
				flock 9
				rm -rf "$whole".draft.* # of who was killed
			fi
			[ ! -d "$whole" ] || exit 0
			draft=$whole.draft.$$
			status=0
			("$@" "$draft") || status=$?
			[ "$status" -ne 0 ] || mv -T "$draft" "$whole" 2>/dev/null || [ -d "$whole" ] || status=1
			rm -rf "$draft"
			[ "$status" -ne 0 ] || find "$kept" -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -rf {} +
			exit "$status"
		) 9>"$whole.lock" || return
	fi
	touch "$whole" # the month begins anew
}

# environment PYTHON FOLDER: makes a virtual environment, and leaves in $pip and $into how packages
# come into it. Distributions that split venv's pip into a package of its own still allow an
# environment without one, which their own pip can fill.
environment() {
	if "$1" -m venv "$2" >>"$log" 2>&1; then
		pip=$2/bin/python into=
	elif "$1" -m pip --version >>"$log" 2>&1 && "$1" -m venv --clear --without-pip "$2" >>"$log" 2>&1; then
		pip=$1 into=$2/bin/python
	else
		unavailable 'python3 has neither venv with pip, nor pip'
	fi
}

# install ARGUMENTS...: what "pip install" does.
install() {
	timeout "${WEFT_PIP_TIMEOUT:-900}" "$pip" -m pip ${into:+--python "$into"} install --quiet --disable-pip-version-check --retries 2 "$@" >>"$log" 2>&1
}

# fetch FOLDER WHAT DRAFT: fills the draft of a folder with the wheel that $wanted pins. $layout is
# pip's option for it: --prefix, for a wheel with libraries beside its modules, else --target.
fetch() {
	into=
	if python3 -m pip --version >>"$log" 2>&1; then
		pip=python3
	elif python3 -m venv "$3/pip" >>"$log" 2>&1; then
		pip=$3/pip/bin/python
	else
		unavailable 'python3 has neither pip, nor venv with pip'
	fi
	printf 'fetching %s into %s\n' "$2" "$1" >&2
	install --no-deps --require-hashes --ignore-installed "${layout:---target}" "$3" --requirement "$wanted" ||
		unavailable "pip could not install $(sed -n 's/==.*//p' "$wanted") (no network, or another platform? see $log)"
	rm -rf "$3/pip"
}
