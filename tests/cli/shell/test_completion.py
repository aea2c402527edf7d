import shutil
import subprocess

import pytest

from corymb.cli.app import COMMANDS, main


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_commands_and_options(tmp_path, capsys):
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert all(command in script for command in COMMANDS)
    (tmp_path / "completion").write_text(script)
    ask = 'source completion; COMP_WORDS=({words}); COMP_CWORD={at}; _corymb; echo "${{COMPREPLY[@]}}"'
    for words, at, wanted in (("corymb resu", 1, ["resume"]), ("corymb resume --ro", 2, ["--rounds"])):
        line = ["bash", "-c", ask.format(words=words, at=at)]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.split() == wanted


def test_another_shell_is_refused(capsys):
    assert main(["completion", "tcsh"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
