"""Finding cards: the driver's files first, then nvidia-smi; whatever goes wrong, none is found."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest
import torch

from ninfer_core.api import UnsupportedError
from ninfer_nvidia import card as card_module
from ninfer_nvidia import cards as module
from ninfer_nvidia.card import detect_card
from ninfer_nvidia.cards import cards

INFORMATION = "Model: \t\t {}\nIRQ:   \t\t 41\nGPU UUID: \t GPU-47f4\nBus Type: \t PCIe\n"


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """``(*names, smi=None)``: a machine whose driver lists the cards; ``smi`` is a shell script."""
    driver, path = tmp_path / "gpus", tmp_path / "bin"
    monkeypatch.setattr(module, "DRIVER", driver)
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setattr(card_module, "_torch_version", lambda: "2.13.0")
    cards.cache_clear()

    def make(*names, smi=None):
        for index, name in enumerate(names):
            folder = driver / f"0000:0{index}:00.0"
            folder.mkdir(parents=True)
            (folder / "information").write_text(INFORMATION.format(name))
        if smi is not None:
            path.mkdir()
            script = path / "nvidia-smi"
            script.write_text(f"#!/bin/sh\n{smi}\n")
            script.chmod(script.stat().st_mode | stat.S_IXUSR)

    yield make
    cards.cache_clear()


def test_cards_are_named_as_the_driver_does(machine):
    machine("NVIDIA H200", "NVIDIA GeForce RTX 5090")
    assert cards() == ("NVIDIA H200", "NVIDIA GeForce RTX 5090")


def test_smi_is_asked_where_the_driver_has_no_files(machine):
    machine(smi="echo NVIDIA GB10; echo; echo ' NVIDIA GB10 '")
    assert cards() == ("NVIDIA GB10", "NVIDIA GB10")


def test_smi_is_not_asked_where_the_driver_has_files(machine):
    machine("NVIDIA H200", smi="echo NVIDIA GB10")
    assert cards() == ("NVIDIA H200",)


@pytest.mark.parametrize("smi", [
    None, "exit 9", "echo NVIDIA H200; exit 1", "printf '\\377\\376'", "sleep 60"])
def test_whatever_goes_wrong_there_are_no_cards(machine, smi, monkeypatch):
    monkeypatch.setattr(module, "SMI_TIMEOUT_S", 0.2)
    machine(smi=smi and f"PATH=/usr/bin:/bin\n{smi}")
    assert cards() == ()
    assert detect_card(("NVIDIA H200",)).reason == "no NVIDIA driver lists a card"


def test_a_driver_that_cannot_be_read_is_none(machine):
    machine("NVIDIA H200")
    [file] = module.DRIVER.glob("*/information")
    file.write_bytes(b"\xff\xfe Model: \x80")
    assert cards() == ()
    file.unlink()
    file.symlink_to(file)
    cards.cache_clear()
    assert cards() == ()


def test_a_script_that_cannot_start_is_none(machine):
    machine(smi="")
    os.chmod(os.environ["PATH"] + "/nvidia-smi", 0o700)
    with open(os.environ["PATH"] + "/nvidia-smi", "w") as file:
        file.write("#!/nowhere/sh\n")
    assert cards() == ()


@pytest.mark.parametrize("names", [(), ("NVIDIA GB10",), ("NVIDIA GB10", "NVIDIA H200")])
def test_another_card_or_none_is_no_claim(machine, names):
    """Of several, the first: it is the one that is used."""
    machine(*names)
    assert detect_card(("NVIDIA H200",)).score is None


def test_a_card_is_above_the_cpu(machine):
    machine("NVIDIA H200")
    assert detect_card(("NVIDIA H200",)).score == card_module.DETECTION_SCORE > 10


def test_torch_without_cuda_is_no_use(machine, monkeypatch):
    machine("NVIDIA H200")
    monkeypatch.setattr(card_module, "_torch_version", lambda: "2.13.0+cpu")
    found = detect_card(("NVIDIA H200",))
    assert found.score is None and "2.13.0+cpu is a CPU build" in found.reason


def test_the_reason_says_what_is_here(machine):
    machine("NVIDIA GB10", "NVIDIA GB10")
    assert detect_card(("NVIDIA GB10",)).reason == "NVIDIA GB10 is here"
    assert detect_card(("NVIDIA H200",)).reason == "the card here is NVIDIA GB10"


def test_a_card_of_like_name_is_another(machine):
    machine("NVIDIA GeForce RTX 5090 Laptop GPU")
    assert "is here" not in detect_card(("NVIDIA GeForce RTX 5090",)).reason


@pytest.mark.parametrize("name", ["rtx5090", "dgx_spark", "hopper"])
class TestProfiles:
    """What all profiles of cards have in common."""

    def profile(self, name):
        return __import__(f"ninfer_profile_{name}.profile", fromlist=["profile"])

    def test_it_plans_anywhere_and_refuses_to_run_elsewhere(self, name):
        profile = self.profile(name).profile()
        assert (profile.name, profile.device) == (name, "cuda")
        if torch.cuda.is_available():
            pytest.skip("a card is here")
        for call in (profile.memory_budget, lambda: profile.prepare(None)):
            with pytest.raises(UnsupportedError, match=f"ninfer plan MODEL --profile {name}"):
                call()

    def test_it_finds_its_own_card_alone(self, name, machine):
        parts = self.profile(name)
        machine(parts.CARD)
        assert parts.detect().score == card_module.DETECTION_SCORE

    def test_the_budget_leaves_the_reserve(self, name, monkeypatch):
        """On memory that the CPU has too, of what the system says is available."""
        profile = self.profile(name).profile()
        monkeypatch.setattr(type(profile), "_require_card", lambda self: None)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (20 << 30, 32 << 30))
        monkeypatch.setattr(card_module, "_available_bytes", lambda: 30 << 30)
        free = 30 << 30 if profile.shares_memory else 20 << 30
        assert profile.memory_budget() == free - profile.reserve_bytes

    def test_its_figures_are_whole_and_sourced(self, name):
        figures = self.profile(name).profile().figures()
        assert figures.flops["bfloat16"] < figures.flops["float8_e4m3fn"]
        assert 1e-6 <= figures.launch_s <= 5e-6
        assert figures.source

    def test_it_detects_without_torch(self, name):
        code = (f"import sys; from ninfer_profile_{name}.profile import detect, profile; detect(); "
                "profile().figures(); print('torch' in sys.modules)")
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert run.stdout.strip() == "False", run.stderr
