"""What the generator of the site does not do by itself: links to files outside docs/ lead to the repository, and
scripts of other hosts are the site's own, where docs.sh has found them: for drawings, and for search in files."""

import pathlib
import posixpath
import re

from mkdocs.structure.files import File
from mkdocs.utils import get_relative_url

LINK = re.compile(r"\]\(((?:\.\./)+[^)#\s]*)(#[^)\s]*)?\)")
SHIM = re.compile(r'<script src="?https://unpkg\.com/iframe-worker/shim"?></script>')
SCRIPTS = pathlib.Path(__file__).parent.parent / "build" / "site-scripts"


def on_config(config):
    if SCRIPTS.exists():
        config.extra_javascript.append("javascripts/mermaid.js")
    return config


def on_files(files, config):
    if SCRIPTS.exists():
        for name in ("mermaid.js", "iframe-worker.js"):
            files.append(File.generated(config, f"javascripts/{name}", abs_src_path=str(SCRIPTS / name)))
    return files


def on_page_markdown(markdown, page, config, files):
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def of_repository(link):
        path = posixpath.normpath(posixpath.join(folder, link[1]))
        if path.startswith("docs/"):
            return link[0]
        kind = "blob" if posixpath.splitext(path)[1] else "tree"
        return f"]({config.repo_url}/{kind}/main/{path}{link[2] or ''})"

    return LINK.sub(of_repository, markdown)


def on_post_page(output, page, config):
    own = get_relative_url("javascripts/iframe-worker.js", page.url)
    output = SHIM.sub(f'<script src="{own}"></script>' if SCRIPTS.exists() else "", output)
    if re.search(r"<(script|link|img)[^>]+(src|href)=.?https?://(?!github)", output):
        raise SystemExit(f"{page.file.src_uri}: the page asks another host for something")
    return output
