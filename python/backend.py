"""Builds the wheels as PEP 427 says, with nothing but Python.

``weft`` is the package, its compiled part and the C library in one archive, tagged with the glibc that the library
needs. It serves every Python: those whose stable ABI is not that of the compiled part do without.
``weft-deep-ep`` installs the name of DeepEP and ``weft-mscclpp`` those of MSCCL++. They
are separate wheels, so a user who has one of these libraries decides which package its name means, and keeps
the other. Installers would write over its files unasked.

``python backend.py FOLDER`` writes all three, and installers get the first through PEP 517's ``build_wheel``.
``make wheel`` builds what goes into the first, and WEFT_LIBRARY, WEFT_NATIVE, WEFT_COMMAND and WEFT_NOTICES name it
elsewhere: the library, the compiled part, the command, and the licences of what is inside them.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import os
import platform
import re
import sys
import time
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent

# When all files of an archive were made, so that equal contents are equal archives.
_DATE = time.gmtime(max(315532800, int(os.environ.get("SOURCE_DATE_EPOCH") or 0)))[:6]

# The oldest glibc that is promised, whatever a library happens to ask for.
_GLIBC = (2, 28)

# The machines of ELF files, by their numbers.
_MACHINES = {62: "x86_64", 183: "aarch64"}
_GO = {"x86_64": "amd64", "aarch64": "arm64"}  # as Go calls them

_PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


@dataclasses.dataclass
class Wheel:
    """The content of a wheel, and its metadata."""

    name: str
    summary: str
    tag: str
    files: dict[str, bytes]
    needs: tuple[str, ...] = ()
    licences: dict[str, bytes] = dataclasses.field(default_factory=dict)

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
            "Author": project["name of authors"],
            "Project-URL": f"Homepage, {project['Homepage']}",
            "Requires-Python": project["requires-python"],
            "Description-Content-Type": "text/markdown",
        }
        licences = {"LICENSE": (HERE.parent / "LICENSE").read_bytes(), **self.licences}
        lines = [f"{k}: {v}\n" for k, v in head.items()]
        lines += [f"License-File: {name}\n" for name in licences]
        lines += [f"Classifier: {c}\n" for c in _classifiers()]
        lines += [f"Requires-Dist: {n}\n" for n in self.needs]
        lines += ["\n", (HERE / project["readme"]).read_text()]
        pure = "true" if self.tag.endswith("-any") else "false"
        files = self.files | {
            f"{info}/METADATA": "".join(lines).encode(),
            f"{info}/WHEEL": (
                f"Wheel-Version: 1.0\nGenerator: weft\nRoot-Is-Purelib: {pure}\nTag: {self.tag}\n"
            ).encode(),
        }
        files |= {f"{info}/licenses/{name}": data for name, data in licences.items()}
        record = [_entry(name, data) for name, data in files.items()]
        files[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"]).encode()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{stem}-{self.tag}.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name, data in files.items():
                _put(archive, name, data)
        return path


def weft() -> Wheel:
    """The package, with the library and the command inside."""
    built = HERE.parent / "build" / "wheel" / _GO.get(platform.machine(), "")
    library = _part("WEFT_LIBRARY", built / "libweft.so")
    command = _part("WEFT_COMMAND", built / "weft")
    native = _part("WEFT_NATIVE", built / "_native.abi3.so")
    if not machine(library) == machine(command) == machine(native):
        raise SystemExit(
            f"the library is for {machine(library)}, its compiled part for {machine(native)}, and the command for "
            f"{machine(command)}"
        )
    return Wheel(
        "weft",
        _project()["description"],
        f"py3-none-{platform_tag(library + native)}",
        _sources("weft")
        | {f"weft/include/{p.name}": p.read_bytes() for p in sorted((HERE.parent / "device").glob("*.cuh"))}
        | {"weft/libweft.so": library, "weft/_native.abi3.so": native, f"weft-{_version()}.data/scripts/weft": command},
        licences={"NOTICES": _part("WEFT_NOTICES", built / "NOTICES")},
    )


def _part(variable: str, built: Path) -> bytes:
    path = Path(os.environ.get(variable) or built)
    if not path.exists():
        raise SystemExit(f"no {path} to put into the wheel: run make wheel, or name it in {variable}")
    return path.read_bytes()


def deep_ep() -> Wheel:
    """The name of DeepEP over it."""
    return _names("weft-deep-ep", "DeepEP's names over Weft", "deep_ep", "deep_ep_cpp")


def mscclpp() -> Wheel:
    """The names of MSCCL++'s expert parallelism over it."""
    return _names("weft-mscclpp", "MSCCL++'s names over Weft", "mscclpp", "mscclpp_ep_cpp")


def _names(name: str, summary: str, *packages: str) -> Wheel:
    files = {path: data for package in packages for path, data in _sources(package).items()}
    return Wheel(name, summary, "py3-none-any", files, (f"weft=={_version()}", "torch"))


def build_wheel(folder: str, _settings: object = None, _metadata: object = None) -> str:
    """Writes the package's wheel into a folder and returns its name (PEP 517)."""
    return weft().write(Path(folder)).name


def platform_tag(library: bytes) -> str:
    """The manylinux tag (PEP 600) of a library that needs no other: the newest glibc that it asks for, or 2.28."""
    needs = {tuple(map(int, m)) for m in re.findall(rb"\0GLIBC_(\d+)\.(\d+)(?:\.\d+)?(?=\0)", library)}
    major, minor = max(needs | {_GLIBC})
    return f"manylinux_{major}_{minor}_{machine(library)}"


def machine(program: bytes) -> str:
    """The machine that an ELF file is for, by the name that wheels use."""
    number = int.from_bytes(program[18:20], "little")
    if program[:4] != b"\x7fELF" or number not in _MACHINES:
        raise SystemExit(f"a program or library of machine {number}, want {' or '.join(_MACHINES.values())}")
    return _MACHINES[number]


def _project() -> dict[str, str]:
    """The texts of pyproject.toml, by their names. Python 3.10 has no parser of TOML."""
    text = (HERE / "pyproject.toml").read_text()
    named = dict(re.findall(r'^([\w-]+) = "(.*)"$', text, re.MULTILINE))
    authors = re.search(r'^\[\[project\.authors\]\]\nname = "(.*)"$', text, re.MULTILINE)[1]
    return named | {"name of authors": authors}


def _classifiers() -> list[str]:
    return [
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Go",
        *(f"Programming Language :: Python :: {p}" for p in ("3", *_PYTHONS)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ]


def _version() -> str:
    return (HERE.parent / "VERSION").read_text().strip()


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
    entry.external_attr = (0o100755 if name.endswith((".so", "/scripts/weft")) else 0o100644) << 16
    archive.writestr(entry, data)


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dist")
    for wheel in (weft(), deep_ep(), mscclpp()):
        path = wheel.write(folder)
        print(f"built {folder.name}/{path.name} ({path.stat().st_size / 1e6:.2f} MB)")
