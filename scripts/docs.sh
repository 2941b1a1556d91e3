#!/bin/sh
# Builds the site of the documentation into build/site, by a generator that is kept in the user's
# cache directory: afterwards this needs no network, and the site needs none. Strict: a link or an
# anchor that leads nowhere fails.
set -eu
. "$(dirname "$0")/env.sh"
. scripts/keep.sh

log=$build/logs/docs.log
: >"$log"

unavailable() {
	fail "$* (see build/logs/docs.log)"
}

fill() {
	printf 'installing the generator into %s (60 MB, once)\n' "$venv"
	environment python3 "$1" &&
		install --only-binary :all: --require-hashes --requirement scripts/docs.txt ||
		unavailable 'pip could not install the generator'
}

# What runs in the browser: mermaid draws the pages' drawings, which are text, and iframe-worker lets
# pages search that are opened as files.
packages='mermaid@11.17.2 dist/mermaid.min.js 6ad2f42c3fc26bbf9e45cbb6d11898972573ea52b33a5f4ff51952899f950ffd
iframe-worker@1.0.4 shim/index.js e8c5d12d87829c503afba01d67772ea9f4aba5b7ae57a0c98e1917711030efbb'

fill_scripts() {
	mkdir "$1" && printf '%s\n' "$packages" | while read -r package script sum; do
		file=$(cd "$1" && npm pack --silent "$package" 2>>"$log") &&
			printf '%s  %s\n' "$sum" "$1/$file" | sha256sum --check --quiet >>"$log" 2>&1 &&
			tar -xzOf "$1/$file" "package/$script" >"$1/${package%@*}.js" && rm "$1/$file" || return 1
	done
}

command -v python3 >/dev/null 2>&1 || fail 'needs python3'
venv=$kept/docs-$(identity scripts/docs.txt "$(describe python3)")
keep "$venv" fill
scripts=$kept/docs-scripts-$(printf '%s' "$packages" | sha256sum | cut -c 1-16)
if [ -d "$scripts" ] || command -v npm >/dev/null 2>&1 && keep "$scripts" fill_scripts; then
	rm -rf "$build/site-scripts" # where docs_hooks.py looks
	cp -r "$scripts" "$build/site-scripts"
else
	printf 'no npm, or it could not fetch scripts: drawings stay text, and search needs a web server\n' >&2
fi
export NO_MKDOCS_2_WARNING=1
"$venv/bin/python" -m mkdocs build --strict --quiet --config-file scripts/docs.yml
printf 'the site is in %s\n' "$build/site/index.html"
