import io

import pytest

from corymb.runs.progress import RoundLine, readable_bytes

ROW = {
    "clock": 1,
    "round": 1,
    "stage": "restart-0",
    "train_loss": 0.1234,
    "churn": 0.25,
    "clusters": 4,
    "asked": 80,
    "replied": 79,
    "rejected": 1,
    "bytes_down": 3000,
    "bytes_up": 1000,
    "notes": {},
    "seconds": 2.0,
}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_outside_a_terminal_each_round_is_a_plain_line():
    stream = io.StringIO()
    with RoundLine(3, stream) as show:
        show(ROW)
        show({**ROW, "stage": "", "train_loss": None})
    first, second = stream.getvalue().splitlines()
    facts = "replied 79/80 rejected 1  clusters 4  churn 25.0%  loss 0.1234  4.0 kB  restart-0"
    assert first == f"round 1/3  eta 4 s  {facts}"
    assert second.startswith("round 2/3  eta 2 s")
    assert second.endswith("8.0 kB")


def test_in_a_terminal_there_is_one_line_that_renews_itself(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    with RoundLine(2, stream) as show:
        show(ROW)
        show(ROW)
    text = stream.getvalue()
    assert "2/2" in text
    assert "replied 79/80 rejected 1" in text
    assert "\x1b[3" in text  # colour


def test_no_color_is_respected(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    with RoundLine(1, stream) as show:
        show(ROW)
    assert "\x1b[3" not in stream.getvalue()


def test_the_terminal_is_given_back_when_the_run_fails():
    stream = Terminal()
    with pytest.raises(KeyError), RoundLine(1, stream) as show:
        show({})
    assert "\x1b[?25h" in stream.getvalue()  # the cursor is back


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (5e15, "5000.0 TB")])
def test_bytes_are_readable(count, text):
    assert readable_bytes(count) == text


def test_a_loss_that_grows_is_said_in_the_line():
    line = RoundLine(1)
    assert "diverging" in line._facts({**ROW, "diverging": True})
    assert "diverging" not in line._facts(ROW)


def test_a_repair_is_said_in_the_line():
    line = RoundLine(1)
    assert "regrouped" in line._facts({**ROW, "notes": {"collapse": {}}})
    assert "regrouped" not in line._facts(ROW)
