"""The command as a process sees it: exit codes, errors, and what start-up imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ninfer_core.api import ConfigError, LazyRef
from ninfer_core.cli import main

NO_HEAVY_IMPORTS = """
import sys
from ninfer_core.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert end.code == 0
heavy = {"torch", "triton", "numpy", "jinja2"} & sys.modules.keys()
assert not heavy, heavy
"""

GREETING = """
from ninfer_core.api import CommandSpec, hookimpl
NINFER_API = (1, 0)

@hookimpl
def ninfer_commands():
    return [CommandSpec("greet", "Greet.", "greeting:run", "greeting:options")]

def options(parser):
    parser.add_argument("who")

def run(arguments):
    print("hello", arguments.who)
    return 5
"""

INTERRUPTED_IMPORT = """
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            sys.meta_path.remove(self)
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
try:
    import ninfer_core.config
except KeyboardInterrupt:
    sys.exit(130)
"""

WAITING = """
import pathlib, time
from ninfer_core.api import CommandSpec, hookimpl
NINFER_API = (1, 0)

@hookimpl
def ninfer_commands():
    return [CommandSpec("wait", "Wait.", "waiting:run")]

def run(arguments):
    file = pathlib.Path("temporary")
    try:
        file.touch()
        print("ready", flush=True)
        time.sleep(60)
    finally:
        file.unlink()
"""


@pytest.fixture
def command(monkeypatch):
    """Puts a function in the place of every command's code."""
    return lambda run: monkeypatch.setattr(LazyRef, "load", lambda self: run)


@pytest.mark.parametrize("arguments", [["--help"], ["plugins", "--help"], ["plugins"]])
def test_starts_without_heavy_imports(arguments):
    subprocess.run([sys.executable, "-c", NO_HEAVY_IMPORTS, *arguments], check=True,
                   stdout=subprocess.DEVNULL)


def test_help_goes_to_stdout(capsys):
    with pytest.raises(SystemExit) as end:
        main.main(["--help"])
    out, err = capsys.readouterr()
    assert end.value.code == 0 and not err
    assert all(f"ninfer {name}" in out for name in ("plugins", "fetch"))


def test_a_plugin_adds_a_command(tmp_path, monkeypatch, capsys):
    (tmp_path / "greeting.py").write_text(GREETING)
    monkeypatch.syspath_prepend(tmp_path)
    assert main.main(["greet", "you", "-p", "greeting"]) == 5
    assert capsys.readouterr().out == "hello you\n"


def test_sigterm_unwinds_the_stack(tmp_path):
    """What a command put somewhere for a while is taken away again."""
    (tmp_path / "waiting.py").write_text(WAITING)
    code = "import sys; from ninfer_core.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "wait", "-p", "waiting"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        assert (tmp_path / "temporary").exists()
        process.terminate()
        assert process.wait(20) == 143
    assert not (tmp_path / "temporary").exists()


@pytest.mark.parametrize("word", ["plans", ""])
def test_a_word_that_is_neither_command_nor_model_is_named(word, capsys):
    assert main.main([word, "--prompt", "x"]) == 1
    assert f"no command or model {word!r}: commands: " in capsys.readouterr().err


def test_what_looks_like_a_file_is_one_that_is_not_there(capsys):
    assert main.main(["nosuch.ninfer", "--prompt", "hi"]) == 1
    assert "no such model [nosuch.ninfer]: the path does not exist" in capsys.readouterr().err


def test_a_usage_error_is_exit_1_on_stderr(capsys):
    assert main.main(["--top-p", "7", "--prompt", "x"]) == 1
    out, err = capsys.readouterr()
    assert not out and err.startswith("error: argument --top-p: must be a number within")


def test_the_code_of_the_command_is_the_exit_code(command):
    command(lambda _: 7)
    assert main.main(["plugins"]) == 7


def failing(error):
    def run(_):
        raise error

    return run


def test_an_error_shows_no_traceback(command, capsys):
    command(failing(ConfigError("odd option", where="here", fix="this")))
    assert main.main(["plugins"]) == 1
    assert capsys.readouterr().err == "error: odd option [here]\n  to fix: this\n"


def test_debug_shows_the_traceback(command, capsys):
    command(failing(ConfigError("odd option")))
    assert main.main(["plugins", "--log-level", "debug"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err and err.endswith("error: odd option\n")


def test_a_bug_is_said_to_be_one(command, capsys):
    command(failing(KeyError("x")))
    assert main.main(["plugins"]) == 1
    err = capsys.readouterr().err
    assert "internal: KeyError('x')" in err and "Traceback" not in err


def test_ctrl_c_is_130_without_traceback(command, capsys):
    command(failing(KeyboardInterrupt()))
    assert main.main(["plugins"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_gone_reader_is_quiet():
    code = "import sys; from ninfer_core.cli.main import main; sys.exit(main(['plugins']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 1


def test_what_the_system_refuses_is_no_bug(command, capsys):
    command(failing(OSError(28, "No space left on device", "disk")))
    assert main.main(["plugins"]) == 1
    err = capsys.readouterr().err
    assert "No space left on device: 'disk'" in err and "internal" not in err


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("arguments", "code"), [("plugins", 0), ("--nonsense", 1)])
def test_a_closed_stream_is_an_empty_one(closed, arguments, code):
    program = "import sys; from ninfer_core.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        ["sh", "-c", f'"$0" -c "$1" {arguments} {closed}', sys.executable, program],
        capture_output=True, text=True,
    )
    assert done.returncode == code
    assert "error" not in done.stdout and "internal" not in done.stderr


def test_ctrl_c_is_not_lost_in_the_imports_of_torch():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_IMPORT], stderr=subprocess.DEVNULL)
    assert done.returncode == 130
