import pytest

from corymb.data.fetching.download import TRIES, CannotResume, ConnectionLost, TooLarge, download
from corymb.data.fetching.progress import DownloadProgress
from tests.data.fetching.server import server as server

BODY = bytes(range(256)) * 40


def get(server, part, *, path="file", most=2**20, checked=True):
    with DownloadProgress("file", 1) as progress:
        return download(f"{server.url}/{path}", part, most=most, checked=checked, progress=progress)


@pytest.fixture
def part(tmp_path):
    return tmp_path / "file.part"


def test_whole(server, part):
    server.serve("file", BODY)
    assert get(server, part) is False
    assert part.read_bytes() == BODY


def test_continues_where_a_connection_broke(server, part):
    server.serve("file", BODY, breaks=(3000, 4000))
    assert get(server, part) is True
    assert part.read_bytes() == BODY
    assert [start for _, start in server.asked] == [0, 3000, 7000]


def test_continues_with_what_an_earlier_process_left(server, part, capsys):
    server.serve("file", BODY)
    part.write_bytes(BODY[:5000])
    assert get(server, part) is True
    assert part.read_bytes() == BODY
    assert server.asked == [("/file", 5000)]
    assert "resuming at 5.0 kB" in capsys.readouterr().err


def test_begins_again_where_the_server_sends_only_whole_files(server, part):
    server.serve("file", BODY, ranges=False)
    part.write_bytes(b"x" * 5000)
    assert get(server, part) is False
    assert part.read_bytes() == BODY


def test_restarts_if_the_server_has_no_further_bytes(server, part):
    server.serve("file", BODY)
    part.write_bytes(BODY + b"more")
    assert get(server, part) is True  # of the attempts together: what is there must be checked
    assert part.read_bytes() == BODY


def test_a_file_without_checksum_is_resumed_only_if_unchanged(server, part):
    server.serve("file", BODY, breaks=(3000,), tag='"one"')
    assert get(server, part, checked=False) is True
    assert part.read_bytes() == BODY
    assert not part.with_name("file.part.tag").exists()
    part.write_bytes(b"x" * 100)  # nothing is known of this
    assert get(server, part, checked=False) is False
    assert part.read_bytes() == BODY
    part.write_bytes(b"x" * 100)
    part.with_name("file.part.tag").write_text('"another"')
    assert get(server, part, checked=False) is False
    assert part.read_bytes() == BODY


def test_every_attempt_is_counted(server, part):
    server.serve("file", BODY, breaks=(10,) * (TRIES + 3))
    with pytest.raises(ConnectionLost, match=r"it broke off after 0\.1 kB of 10\.2 kB"):
        get(server, part)
    assert len(server.asked) == TRIES
    assert part.read_bytes() == BODY[: 10 * TRIES]  # for the next time


def test_a_connection_that_brings_nothing_is_the_last(server, part):
    server.serve("file", BODY, breaks=(0,) * 9)
    with pytest.raises(ConnectionLost, match=r"it broke off after 0\.0 kB"):
        get(server, part)
    assert len(server.asked) == 1


def test_no_more_than_the_file_can_have(server, part):
    server.serve("file", BODY)
    with pytest.raises(TooLarge, match="more than the 100 bytes"):
        get(server, part, most=100)
    assert not part.exists()


def test_a_server_that_sends_other_bytes_than_asked_for(server, part, monkeypatch):
    server.serve("file", BODY)
    part.write_bytes(BODY[:10])
    receive = "corymb.data.fetching.download._receive"

    def refuse(*_):
        raise CannotResume("other bytes")

    monkeypatch.setattr(receive, refuse)
    with pytest.raises(CannotResume):  # the second time from the beginning, and then no more
        get(server, part)
