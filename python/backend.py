"""Builds the wheels as PEP 427 says, with nothing but Python.

``weft`` is the package and the C library in one archive, tagged with the glibc that the library needs.
``weft-deep-ep`` installs the name of DeepEP and ``weft-mscclpp`` those of MSCCL++'s expert parallelism. They
are separate wheels, so a user who has one of these libraries decides which package its name means, and keeps
the other. Installers would write over its files unasked.

``python backend.py FOLDER`` writes all three, and installers get the first through PEP 517's ``build_wheel``.
``make clib`` builds the library, or WEFT_LIBRARY names it.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import os
import platform
import re
import sys
import tomllib
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent

# The day on which all files of an archive were made, so that equal contents are equal archives.
_DATE = (1980, 1, 1, 0, 0, 0)


@dataclasses.dataclass
class Wheel:
    """The content of a wheel, and its metadata."""

    name: str
    summary: str
    tag: str
    files: dict[str, bytes]
    needs: tuple[str, ...] = ()

    def write(self, folder: Path) -> Path:
        """Writes the archive, with the record of its files, and returns where it is."""
        project, version = _project(), _version()
        stem = f"{self.name.replace('-', '_')}-{version}"
        info = f"{stem}.dist-info"
        head = {
            "Metadata-Version": "2.4",
            "Name": self.name,
            "Version": version,
            "Summary": self.summary,
            "License-Expression": project["license"],
            "License-File": "LICENSE",
            "Requires-Python": project["requires-python"],
        }
        lines = [f"{k}: {v}\n" for k, v in head.items()] + [f"Requires-Dist: {n}\n" for n in self.needs]
        pure = "true" if self.tag.endswith("-any") else "false"
        files = self.files | {
            f"{info}/METADATA": "".join(lines).encode(),
            f"{info}/WHEEL": (
                f"Wheel-Version: 1.0\nGenerator: weft\nRoot-Is-Purelib: {pure}\nTag: {self.tag}\n"
            ).encode(),
            f"{info}/licenses/LICENSE": (HERE.parent / "LICENSE").read_bytes(),
        }
        record = [_entry(name, data) for name, data in files.items()]
        files[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"]).encode()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{stem}-{self.tag}.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name, data in files.items():
                _put(archive, name, data)
        return path


def weft() -> Wheel:
    """The package, with the library inside."""
    library = Path(os.environ.get("WEFT_LIBRARY") or HERE.parent / "build" / "clib" / "libweft.so")
    if not library.exists():
        raise SystemExit(f"no {library} to put into the wheel: run make clib first")
    data = library.read_bytes()
    return Wheel(
        "weft",
        _project()["description"],
        f"py3-none-{platform_tag(data)}",
        _sources("weft") | {"weft/libweft.so": data},
    )


def deep_ep() -> Wheel:
    """The name of DeepEP over it."""
    return _names("weft-deep-ep", "DeepEP's names over Weft", "deep_ep", "deep_ep_cpp")


def mscclpp() -> Wheel:
    """The names of MSCCL++'s expert parallelism over it."""
    return _names("weft-mscclpp", "MSCCL++'s names of expert parallelism over Weft", "mscclpp", "mscclpp_ep_cpp")


def _names(name: str, summary: str, *packages: str) -> Wheel:
    files = {path: data for package in packages for path, data in _sources(package).items()}
    return Wheel(name, summary, "py3-none-any", files, (f"weft=={_version()}", "torch"))


def build_wheel(folder: str, _settings: object = None, _metadata: object = None) -> str:
    """Writes the package's wheel into a folder and returns its name (PEP 517)."""
    return weft().write(Path(folder)).name


def platform_tag(library: bytes) -> str:
    """The manylinux tag (PEP 600) of the newest glibc that a library asks for. It may need no other library."""
    needs = {tuple(map(int, m)) for m in re.findall(rb"\0GLIBC_(\d+)\.(\d+)(?:\.\d+)?(?=\0)", library)}
    major, minor = max(needs)
    return f"manylinux_{major}_{minor}_{platform.machine()}"


def _project() -> dict[str, str]:
    return tomllib.loads((HERE / "pyproject.toml").read_text())["project"]


def _version() -> str:
    return re.search(r'^__version__ = "(.+)"$', (HERE / "weft" / "__init__.py").read_text(), re.MULTILINE)[1]


def _sources(package: str) -> dict[str, bytes]:
    return {
        str(p.relative_to(HERE)): p.read_bytes()
        for p in sorted((HERE / package).rglob("*"))
        if p.suffix == ".py" or p.name == "py.typed"
    }


def _entry(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def _put(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
    archive.writestr(entry, data)


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dist")
    for wheel in (weft(), deep_ep(), mscclpp()):
        path = wheel.write(folder)
        print(f"built {folder.name}/{path.name} ({path.stat().st_size / 1e6:.2f} MB)")
