"""Builds the wheel: the package and the C library in one archive, as PEP 427 says, tagged with the glibc that the library needs.

``python backend.py FOLDER`` does, and installers do through PEP 517's ``build_wheel``. The library is what ``make clib`` built, or what WEFT_LIBRARY names.
"""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import re
import sys
import tomllib
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent

# The folded day on which all files of an archive were made, so that equal contents are equal archives.
_DATE = (1980, 1, 1, 0, 0, 0)


def build_wheel(folder: str, _settings: object = None, _metadata: object = None) -> str:
    """Writes the wheel into a folder and returns its name."""
    library = Path(os.environ.get("WEFT_LIBRARY") or HERE.parent / "build" / "clib" / "libweft.so")
    if not library.exists():
        raise SystemExit(f"wheel: no {library}: run make clib first")
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    version = re.search(r'^__version__ = "(.+)"$', (HERE / "weft" / "__init__.py").read_text(), re.MULTILINE)[1]
    tag = f"py3-none-{platform_tag(library.read_bytes())}"
    files = {str(p.relative_to(HERE)): p.read_bytes() for p in sorted((HERE / "weft").rglob("*")) if p.suffix in (".py", ".typed")}
    files["weft/libweft.so"] = library.read_bytes()
    info = f"{project['name']}-{version}.dist-info"
    files[f"{info}/METADATA"] = metadata(project, version)
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: weft\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/licenses/LICENSE"] = (HERE.parent / "LICENSE").read_bytes()
    name = f"{project['name']}-{version}-{tag}.whl"
    Path(folder).mkdir(parents=True, exist_ok=True)
    write(Path(folder) / name, files, info)
    return name


def platform_tag(library: bytes) -> str:
    """The manylinux tag (PEP 600) of the newest glibc that a library asks for. It may need no other library."""
    needs = {tuple(map(int, m)) for m in re.findall(rb"\0GLIBC_(\d+)\.(\d+)(?:\.\d+)?(?=\0)", library)}
    major, minor = max(needs)
    return f"manylinux_{major}_{minor}_{platform.machine()}"


def metadata(project: dict[str, str], version: str) -> bytes:
    lines = {
        "Metadata-Version": "2.4",
        "Name": project["name"],
        "Version": version,
        "Summary": project["description"],
        "License-Expression": project["license"],
        "License-File": "LICENSE",
        "Requires-Python": project["requires-python"],
    }
    return "".join(f"{k}: {v}\n" for k, v in lines.items()).encode()


def write(path: Path, files: dict[str, bytes], info: str) -> None:
    """Writes an archive with the record of its files."""
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")
            put(archive, name, data)
        put(archive, f"{info}/RECORD", "".join([*record, f"{info}/RECORD,,\n"]).encode())


def put(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
    archive.writestr(entry, data)


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dist")
    name = build_wheel(str(folder))
    print(f"built {folder.name}/{name} ({(folder / name).stat().st_size / 1e6:.1f} MB)")
