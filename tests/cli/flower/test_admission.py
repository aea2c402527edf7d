"""A node that is refused reports why in one line and ends; one that may still be admitted keeps trying."""

import http.server
import shutil
import ssl
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from email.utils import formatdate

import pytest

from corymb.cli.app import main
from corymb.cli.flower import up as flower_up
from corymb.cli.flower.admission import check_files, connection_problem
from corymb.cli.flower.folder import free_port, state_of
from corymb.cli.flower.new import new
from corymb.cli.flower.node import REFUSED, Admission
from corymb.cli.flower.node_settings import startup_problem
from corymb.cli.flower.processes import Process, alive, remember, remembered
from corymb.cli.flower.supervise import RECORD, keep_running
from corymb.settings import InvalidInput

pytest.importorskip("cryptography", reason="the extra [flower] is not installed")
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two authorities, with a server's certificate and a node's key each."""
    from corymb.cli.flower.keys import make_certificates, make_node_key

    folder = tmp_path_factory.mktemp("keys")
    for name in ("mine", "other"):
        make_certificates(folder / name, ["127.0.0.1"])
        make_node_key(folder / name / "key")
    return folder


class Answer(http.server.BaseHTTPRequestHandler):
    ahead = 0.0

    def do_GET(self):
        self.send_response_only(404)
        self.send_header("Date", formatdate(time.time() + self.ahead, usegmt=True))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


@contextmanager
def superlink(tls=None, ahead=0.0):
    """What answers like a SuperLink: its address."""
    server = http.server.HTTPServer(("127.0.0.1", 0), type("Answer", (Answer,), {"ahead": ahead}))
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls / "server.pem", tls / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_superlink_that_refuses_a_node_is_recognised(files):
    ca, other = files / "mine" / "ca.pem", files / "other" / "ca.pem"
    with superlink(files / "mine") as there:
        assert connection_problem(there, ca) == ""
        assert f"was not signed by {other} (--ca): take ca.pem" in connection_problem(there, other)
        assert "speaks TLS: give its certificate, --ca ca.pem" in connection_problem(there, None)
        named = there.replace("127.0.0.1", "localhost")
        assert connection_problem(named, ca) == ""
    with superlink() as there:
        assert connection_problem(there, None) == ""
        assert "does not speak TLS: leave --ca and --key out" in connection_problem(there, ca)
    nobody = f"127.0.0.1:{free_port()}"
    assert connection_problem(nobody, ca) is None
    assert connection_problem(nobody, None) is None


def test_a_certificate_is_for_one_address(files, tmp_path, monkeypatch):
    ca = files / "mine" / "ca.pem"
    with superlink(files / "mine") as there:
        monkeypatch.setattr("corymb.cli.flower.admission.split_address", lambda text: ("127.0.0.2", int(text[10:])))
        monkeypatch.setattr("socket.create_connection", _to_loopback(__import__("socket").create_connection))
        assert "is not for that address: on its machine, add it to names in federation.toml" in connection_problem(
            there, ca
        )


def _to_loopback(connect):
    return lambda address, *more, **others: connect(("127.0.0.1", address[1]), *more, **others)


@pytest.mark.parametrize(
    ("ahead", "says"),
    [(3600, "s behind the SuperLink's"), (-30, "s ahead of the SuperLink's"), (-3, ""), (200, "")],
)
def test_a_clock_that_flower_does_not_admit_is_reported(ahead, says):
    with superlink(ahead=ahead) as there:
        problem = connection_problem(there, None)
    assert says in problem
    assert bool(problem) == bool(says)


def test_files_are_checked_before_anything_is_started(files, tmp_path, capsys):
    key, ca = files / "mine" / "key", files / "mine" / "ca.pem"
    check_files(ca, key)
    (tmp_path / "text").write_text("hello")
    wrong = {"text": "is not a private key in OpenSSH's format"}
    if shutil.which("ssh-keygen"):
        for name, kind, word in (("rsa", "rsa", ""), ("locked", "ecdsa", "secret")):
            subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", word, "-f", tmp_path / name], check=True)
        wrong |= {"rsa": "is not an elliptic-curve key", "locked": "has a passphrase"}
    for name, says in wrong.items():
        with pytest.raises(InvalidInput, match=says):
            check_files(ca, tmp_path / name)
    with pytest.raises(InvalidInput, match="is a public key"):
        check_files(ca, key.with_suffix(".pub"))
    with pytest.raises(InvalidInput, match="holds no certificate"):
        check_files(tmp_path / "text", None)


def test_a_node_with_the_wrong_authority_ends_with_one_line(files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with superlink(files / "mine") as there:
        words = ["--superlink", there, "--data", "x:y", "--state", "s", "--ca", str(files / "other" / "ca.pem")]
        assert main(["flower", "node", "a", *words]) == 2
    err = capsys.readouterr().err
    assert "was not signed by" in err
    assert err.count("\n") == 1
    assert "was not signed by" in startup_problem(tmp_path / "s")


def test_a_refusal_of_the_supernode_is_reported_with_advice(files, tmp_path):
    with superlink(files / "mine") as there:
        admission = Admission(there, files / "mine" / "ca.pem", files / "mine" / "key", tmp_path)
        keyless = Admission(there, files / "mine" / "ca.pem", None, tmp_path)
        assert admission.problem(ended=True) == ""
        for one, said, says in (
            (admission, "key", "does not know the key .*flwr supernode register key.pub corymb"),
            (keyless, "key", "admits only nodes with a key that it knows: give --key"),
            (admission, "another version", "Flower refuses this node: another version"),
        ):
            (tmp_path / REFUSED).write_text(said)
            with pytest.raises(InvalidInput, match=says):
                raise InvalidInput(one.problem(ended=True))
        assert admission.problem(ended=True) == ""


def test_a_superlink_that_starts_late_is_checked_then(files, tmp_path):
    admission = Admission(f"127.0.0.1:{free_port()}", None, None, tmp_path)
    assert admission.problem(ended=False) == ""
    with superlink(files / "mine") as there:
        admission._superlink = there
        assert "speaks TLS" in admission.problem(ended=False)
    with superlink() as there:
        admission._superlink = there
        assert admission.problem(ended=False) == ""
    admission._superlink = "nowhere"  # it was reached once: it is not asked again while all runs
    assert admission.problem(ended=False) == ""


def test_processes_are_not_kept_running_where_that_is_hopeless(tmp_path, monkeypatch):
    monkeypatch.setattr("corymb.cli.flower.supervise._on_signals", lambda stop: None)
    monkeypatch.setattr("corymb.cli.flower.supervise.CHECK_SECONDS", 0.2)
    ends = [sys.executable, "-c", "raise SystemExit(1)"]
    asked = []

    def hopeless(ended):
        asked.append(ended)
        return "no key" if ended else ""

    assert keep_running({"sleeper": SLEEP, "supernode": ends}, tmp_path, hopeless) == "no key"
    assert asked[-1]
    assert keep_running({"sleeper": SLEEP}, tmp_path, lambda ended: "" if ended else "not TLS") == "not TLS"
    assert [process.name for process in remembered(tmp_path / RECORD)] == ["sleeper"]
    assert not any(map(alive, remembered(tmp_path / RECORD)))


def test_status_reports_why_a_node_has_ended(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    new("fed")
    monkeypatch.chdir(tmp_path / "fed")
    state = state_of(tmp_path / "fed")
    remember(state.processes, [Process("node-0", 1, "")])
    state.node("node-0").mkdir(parents=True)
    (state.node("node-0") / "ready.json").write_text('{"problem": "it does not know the key"}')
    monkeypatch.setattr(flower_up, "answers", lambda address: True)
    monkeypatch.setattr(flower_up, "online", lambda federation, state: [])
    assert flower_up.status() == 1
    assert "it ended: it does not know the key" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "message", "known", "why"),
    [
        (305, "Failed …\n[code: 2004] activation failed.", False, "key"),
        (
            305,
            "Failed …\n[code: 2004] SuperNode activation failed.",
            True,
            "",
        ),  # its former process is not yet given up
        (305, "Failed …\n[code: 2001] registration is disabled", True, "key"),
        (305, "Failed to initialize the connection", False, ""),
        (606, "Runtime version\n incompatible", True, "Runtime version incompatible"),
    ],
)
def test_flowers_reasons_for_ending_a_supernode(code, message, known, why):
    pytest.importorskip("flwr", reason="the extra [flower] is not installed")
    from corymb.engines.flower.private import why_refused

    assert why_refused(code, message, lambda: known) == why


def test_flower_still_has_its_numbers_and_ends_a_supernode_where_it_is_listened_to():
    pytest.importorskip("flwr", reason="the extra [flower] is not installed")
    from flwr.supercore.error import ApiErrorCode
    from flwr.supercore.exit import ExitCode
    from flwr.supernode import fleet_http_connection

    from corymb.engines.flower.private import KEYS_ONLY, UNKNOWN_KEY, VERSION

    assert ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED == UNKNOWN_KEY
    assert ApiErrorCode.FLEET_SUPERNODE_REGISTRATION_DISABLED == KEYS_ONLY
    assert ExitCode.RUNTIME_VERSION_INCOMPATIBLE == VERSION
    assert callable(fleet_http_connection.flwr_exit)
