"""``python -m snnipu info``."""

import json
import os

import pytest
import torch
from support.commands import read_json, refusal, words

from snnipu.backends import host
from snnipu.cli import info, main


def test_text_names_every_part(capsys):
    assert main(["info"]) == 0
    printed = capsys.readouterr().out
    for word in ("snnipu", "snntorch", "threads", "lif_sequence", "lif_step", "backends", "not available"):
        assert word in printed
    if host.library is not None:
        assert f"  in_use            {host.isa()}" in printed
        assert "cpu: host" in printed


def test_json(tmp_path, capsys):
    assert main(words("info --json", tmp_path / "info.json")) == 0
    document = read_json(tmp_path / "info.json")
    assert document["versions"]["torch"] == torch.__version__
    assert document["native"]["threads"] == torch.get_num_threads()
    capsys.readouterr()
    assert main(["info", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == document


@pytest.mark.slow
def test_says_why_the_library_is_missing(command, tmp_path):
    printed, _ = command("info", env={"SNNIPU_NATIVE_DIR": str(tmp_path)}).communicate()
    assert "  host      not available: the native library was not built" in printed
    assert "cpu: reference" in printed


def test_says_what_an_ipu_lacks(tmp_path, monkeypatch):
    monkeypatch.setattr(info, "is_installed", lambda name: False)
    monkeypatch.setenv("SNNIPU_POPART_LIBRARY", str(tmp_path / "lib.so"))
    ipu = info.collect()["backends"]["ipu"]
    assert not ipu["available"]
    assert ipu["reason"].startswith(f"PopTorch is not installed; no PopART operators in {tmp_path / 'lib.so'}; ")
    assert "`python -m snnipu build-ipu`" in ipu["reason"]
    (tmp_path / "lib.so").write_text("")
    assert info.collect()["backends"]["ipu"]["reason"] == "PopTorch is not installed"
    monkeypatch.setattr(info, "is_installed", lambda name: name == "poptorch")
    assert info.collect()["backends"]["ipu"] == {"available": True, "reason": None}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_says_why_there_is_no_cuda(monkeypatch, capsys):
    assert main(["info"]) == 0
    assert "  cuda      not available: PyTorch finds no CUDA device" in capsys.readouterr().out
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("snnipu.backends.triton.unavailable_reason", lambda device=None: None)
    assert main(["info"]) == 0
    printed = capsys.readouterr().out
    assert "  cuda      available" in printed
    assert "cuda: triton" in printed


def test_bad_arguments(tmp_path, capsys):
    assert "argument --json: " in refusal(capsys, main, "info --json", tmp_path / "missing" / "info.json")
    assert "--no-such-option" in refusal(capsys, main, "info --no-such-option")


def test_no_or_unknown_command(capsys):
    assert main([]) == 2
    assert "train" in capsys.readouterr().out
    assert "invalid choice: 'fly'" in refusal(capsys, main, "fly")
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0


def test_environment_without_the_name_of_the_home(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SNNIPU_REPORTED", str(tmp_path / "somewhere"))
    monkeypatch.setenv("SECRET_TOKEN", "abc")
    assert main(["info"]) == 0
    printed = capsys.readouterr().out
    assert ["SNNIPU_REPORTED", os.path.join("~", "somewhere")] in [line.split() for line in printed.splitlines()]
    assert "built_flags" in printed
    assert str(tmp_path) not in printed
    assert "SECRET_TOKEN" not in printed
