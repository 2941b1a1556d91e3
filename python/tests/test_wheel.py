"""The wheels: what is in them, and that they work by themselves."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import SOURCE, alone

import weft
from weft import _library


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The package's wheel, and those of DeepEP's names and of MSCCL++'s."""
    folder, parts = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("parts")
    subprocess.run(["sh", SOURCE.parent / "scripts/command.sh", parts / "weft"], check=True, capture_output=True)
    (parts / "NOTICES").write_text("the licences of others\n")
    subprocess.run(
        [sys.executable, SOURCE / "backend.py", folder],
        env=alone()
        | {
            "WEFT_LIBRARY": str(_library.find()),
            "WEFT_NATIVE": str(Path(_library.find()).with_name("_native.abi3.so")),
            "WEFT_COMMAND": str(parts / "weft"),
            "WEFT_NOTICES": str(parts / "NOTICES"),
        },
        check=True,
        capture_output=True,
    )
    return sorted(folder.iterdir())


@pytest.fixture
def built(wheels):
    return wheels[0]


def names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_contents(wheels):
    package, deep_ep, mscclpp = wheels
    assert package.stat().st_size <= 12e6
    number = (SOURCE.parent / "VERSION").read_text().strip()
    info = f"weft-{number}.dist-info"
    assert {f"weft-{number}.data/scripts/weft", f"{info}/licenses/NOTICES", f"{info}/licenses/LICENSE"} <= names(
        package
    )
    with zipfile.ZipFile(package) as archive:
        head = archive.read(f"{info}/METADATA").decode()
    assert f"\nVersion: {number}\n" in head
    assert "\nAuthor: The Weft authors\n" in head
    assert "\nProject-URL: Homepage, https://" in head
    assert "\nRequires-Python: >=3.10\n" in head
    assert "\n\n# Weft for Python\n" in head
    assert {"weft/__init__.py", "weft/py.typed", "weft/libweft.so", "weft/ep/handle.py"} <= names(package)
    assert {"weft/include/weft.cuh", "weft/include/port.cuh"} <= names(package)
    assert {"deep_ep/__init__.py", "deep_ep/utils/math.py", "deep_ep_cpp/__init__.py"} <= names(deep_ep)
    assert {"mscclpp/ext/ep/buffer.py", "mscclpp_ep_cpp/__init__.py", "mscclpp_ep_cpp/runtime.py"} <= names(mscclpp)
    everything = [n for wheel in wheels for n in names(wheel)]
    assert len(everything) == len(set(everything))
    assert not [n for n in everything if "tests" in n or n.endswith(".pyc")]
    for wheel, name in ((deep_ep, "weft_deep_ep"), (mscclpp, "weft_mscclpp")):
        assert wheel.name == package.name.split("-py3")[0].replace("weft", name) + "-py3-none-any.whl"


def test_tag_is_true(built):
    """The library needs no newer glibc than the tag says, and no other library of the system."""
    glibc = re.fullmatch(r"weft-[\d.]+-py3-none-manylinux_2_(\d+)_\w+\.whl", built.name)
    try:
        out = subprocess.run(
            ["objdump", "-p", "-T", _library.find()], capture_output=True, text=True, check=True
        ).stdout
    except FileNotFoundError:
        pytest.skip("no objdump")
    assert max(28, *(int(v) for v in re.findall(r"GLIBC_2\.(\d+)", out))) == int(glibc[1])
    assert set(re.findall(r"NEEDED +(\S+)", out)) <= {
        "libc.so.6",
        "libpthread.so.0",
        "libdl.so.2",
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1",
    }


def test_they_install_and_run(wheels, tmp_path):
    pip = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False)
    if pip.returncode:
        pytest.skip("no pip")
    target = tmp_path / "site"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
        "--no-deps",
        "--target",
        target,
        *wheels,
    ]
    subprocess.run(install, check=True, capture_output=True)
    program = "import weft\nwith weft.join() as c: print(c.ranks, weft.__file__)\n"
    want = f"1 {target}/weft/__init__.py\n"
    if importlib.util.find_spec("torch"):
        program += "import deep_ep, mscclpp_ep_cpp\nfrom mscclpp.ext import ep\n"
        program += "for m in (deep_ep, mscclpp_ep_cpp, ep): print(m.__file__)\n"
        want += (
            f"{target}/deep_ep/__init__.py\n{target}/mscclpp_ep_cpp/__init__.py\n{target}/mscclpp/ext/ep/__init__.py\n"
        )
    env = {k: v for k, v in alone().items() if k != "WEFT_LIBRARY"} | {"PYTHONPATH": str(target)}
    out = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout
    assert out == want
    said = {
        subprocess.run(
            [*command, "--version"], env=env, capture_output=True, text=True, check=True, cwd=tmp_path
        ).stdout
        for command in ([target / "bin" / "weft"], [sys.executable, "-m", "weft"])
    }
    assert len(said) == 1
    assert said.pop().startswith(f"weft version {weft.__version__}")
    logged = subprocess.run(
        [target / "bin" / "weft", "run", "-n", "2", "--", sys.executable, "-c", "import weft; weft.join().close()"],
        env=env | {"WEFT_LOG": "info"},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert len(re.findall(r"msg=joined .*\branks=2 ", logged.stderr + logged.stdout)) == 2
