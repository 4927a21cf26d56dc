"""The folder of the native libraries: the package's own, an installed snnipu's, or none with a reason."""

import json
import shutil
import sys

import pytest

from snnipu import _native_sources
from snnipu._version import __version__
from snnipu.backends import libraries


def make_sources(root, text="int answer = 42;\n"):
    (root / "csrc" / "host").mkdir(parents=True)
    (root / "csrc" / "host" / "library.cpp").write_text(text)
    (root / "custom_ops").mkdir()
    (root / "setup.py").write_text("flags = []\n")
    return root


def make_libraries(package, built_from=None):
    folder = package / "_native"
    folder.mkdir(parents=True)
    (folder / "libsnnipu-baseline.so").write_bytes(b"")
    if built_from is not None:
        (folder / _native_sources.RECORD).write_text(json.dumps({"sources": built_from}))
    return folder


def install(site, built_from=None, version=__version__, editable=None):
    """Install a snnipu in a site-packages folder, or the metadata of an editable install."""
    folder = site / f"snnipu-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: snnipu\nVersion: {version}\n")
    if editable is not None:
        origin = {"url": editable.as_uri(), "dir_info": {"editable": True}}
        (folder / "direct_url.json").write_text(json.dumps(origin))
        return None
    return make_libraries(site / "snnipu", built_from)


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """Make a source tree that is the running package, without built libraries and without another installation."""
    root = make_sources(tmp_path / "clone")
    (root / "snnipu").mkdir()
    monkeypatch.delenv("SNNIPU_NATIVE_DIR", raising=False)
    monkeypatch.setattr(libraries, "PACKAGE", root / "snnipu")
    monkeypatch.setattr(sys, "path", [str(root), str(tmp_path / "site")])
    libraries._find.cache_clear()
    yield root
    libraries._find.cache_clear()


def test_nothing_is_built(clone):
    folder, problem = libraries.find()
    assert folder == clone / "snnipu" / "_native"
    assert "was not built" in problem
    assert "SNNIPU_REQUIRE_NATIVE=1 pip install ." in problem


def test_an_installed_package_serves_a_clone_of_the_same_sources(clone, tmp_path):
    installed = install(tmp_path / "site", _native_sources.fingerprint(clone))
    assert libraries.find() == (installed, None)
    assert libraries.native_folder() == installed


def test_not_with_a_library_of_other_sources(clone, tmp_path):
    installed = install(tmp_path / "site", _native_sources.fingerprint(clone))
    (clone / "csrc" / "host" / "library.cpp").write_text("int answer = 43;\n")
    folder, problem = libraries.find()
    assert folder == clone / "snnipu" / "_native"
    assert problem.startswith(f"the native library in {installed} was built from other sources than those in {clone}: ")
    assert "build_ext --inplace" in problem


def test_not_with_a_library_that_does_not_tell(clone, tmp_path):
    installed = install(tmp_path / "site")
    assert f"{installed} has no record of what it was built from" in libraries.find().problem


def test_not_with_another_version(clone, tmp_path):
    install(tmp_path / "site", _native_sources.fingerprint(clone), version="999.0")
    assert "was not built" in libraries.find().problem


def test_the_clone_of_an_editable_installation(clone, tmp_path):
    other = make_libraries(tmp_path / "other clone" / "snnipu", _native_sources.fingerprint(clone))
    install(tmp_path / "site", editable=tmp_path / "other clone")
    assert libraries.find() == (other, None)


def test_own_libraries_come_first(clone, tmp_path):
    install(tmp_path / "site", _native_sources.fingerprint(clone))
    folder = make_libraries(clone / "snnipu", _native_sources.fingerprint(clone))
    assert libraries.find() == (folder, None)


def test_stale_own_libraries_are_not_used(clone, tmp_path):
    stale = make_libraries(clone / "snnipu", "of yesterday")
    assert f"{stale} was built from other sources" in libraries.find().problem
    libraries._find.cache_clear()
    installed = install(tmp_path / "site", _native_sources.fingerprint(clone))
    assert libraries.find() == (installed, None)


def test_an_installed_package_asks_nobody(clone, tmp_path, monkeypatch):
    package = install(tmp_path / "site", "whatever")
    monkeypatch.setattr(libraries, "PACKAGE", package.parent)
    assert libraries.find() == (package, None)
    shutil.rmtree(package)
    libraries._find.cache_clear()
    assert "was not built" in libraries.find().problem


def test_the_environment_comes_first(clone, tmp_path, monkeypatch):
    chosen = make_libraries(tmp_path / "chosen")
    make_libraries(clone / "snnipu", _native_sources.fingerprint(clone))
    monkeypatch.setenv("SNNIPU_NATIVE_DIR", str(chosen))
    assert libraries.find() == (chosen, None)


def test_what_the_fingerprint_sees(tmp_path):
    root = make_sources(tmp_path / "a")
    before = _native_sources.fingerprint(root)
    assert before == _native_sources.fingerprint(make_sources(tmp_path / "b"))
    (root / "csrc" / "README.txt").write_text("not compiled")
    assert before == _native_sources.fingerprint(root)
    flags = root / "snnipu" / "_native_sources.py"
    for path in (root / "setup.py", flags, root / "custom_ops" / "new.cpp", root / "csrc" / "host" / "new.h"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("// other\n")
        assert _native_sources.fingerprint(root) != before
        before = _native_sources.fingerprint(root)
    assert _native_sources.fingerprint(tmp_path) is None
