"""With TLS and node keys, every interface admits only those who should be admitted."""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import closing

import pytest

from corymb.cli.flower.folder import free_port, program
from corymb.cli.flower.processes import QUIET
from corymb.settings import InvalidInput
from tests.federation.conftest import ROOT, Federation

pytestmark = pytest.mark.flower_all
httpx = pytest.importorskip("httpx", reason="the extra [flower] is not installed")


@pytest.fixture(scope="module")
def secure(secure_federation):
    return secure_federation


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    """Certificates and keys of somebody else."""
    from corymb.cli.flower.keys import make_certificates, make_node_key

    folder = tmp_path_factory.mktemp("wrong")
    make_certificates(folder, ["127.0.0.1"])
    make_node_key(folder / "key")
    return folder


def connect(federation, ca="tls/ca.pem", secret="secret"):
    from corymb.engines.flower.driver import connect

    files = {name: None if at is None else federation.state / at for name, at in (("ca", ca), ("secret", secret))}
    return connect(federation.address, **files)


def test_the_node_whose_key_is_registered_is_reached(secure):
    from corymb.engines.remote import RemoteEngine

    transport = connect(secure)
    try:
        engine = RemoteEngine(transport, expect=1)
        assert set(engine.hosts) == {"node-0"}
        assert engine.echo({"number": 1.0}) < 60
    finally:
        transport.close()


def test_a_server_without_tls_or_with_the_wrong_authority_or_without_the_secret_is_refused(secure, wrong):
    with pytest.raises(InvalidInput, match="No SuperLink answers at"):
        connect(secure, ca=None)
    with pytest.raises(InvalidInput, match="No SuperLink answers over TLS"):
        connect(secure, ca=wrong / "ca.pem")
    with pytest.raises(InvalidInput, match="give the secret"):
        connect(secure, secret=None)
    with pytest.raises(InvalidInput, match="give the secret"):
        connect(secure, secret=wrong / "ca.pem")


def online(federation):
    from corymb.engines.flower.link import link_to
    from corymb.engines.flower.private import nodes_online

    return nodes_online(link_to(federation.address, federation.state / "tls" / "ca.pem", None))


@pytest.mark.parametrize("who", ["unregistered", "keyless", "plain text", "wrong authority"])
def test_a_node_that_should_not_get_in_does_not(secure, wrong, who, tmp_path):
    ca = secure.state / "tls" / "ca.pem"
    options = {
        "unregistered": ["--root-certificates", ca, "--auth-supernode-private-key", wrong / "key"],
        "keyless": ["--root-certificates", ca],
        "plain text": ["--insecure"],
        "wrong authority": ["--root-certificates", wrong / "ca.pem", "--auth-supernode-private-key", wrong / "key"],
    }[who]
    command = [sys.executable, "-m", "corymb.engines.flower.supernode", *map(str, options)]
    command += [
        "--superlink",
        secure.address,
        "--isolation",
        "process",
        "--host",
        "127.0.0.1",
        "--port",
        str(free_port()),
    ]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}", "FLWR_HOME": str(tmp_path)}
    before = online(secure)
    assert len(before) == 1
    with (tmp_path / "log").open("w") as log:
        node = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            until = time.monotonic() + 30
            while (
                time.monotonic() < until
                and node.poll() is None
                and "SuperNode ID" not in (tmp_path / "log").read_text()
            ):
                time.sleep(1)
            assert online(secure) == before
            assert "SuperNode ID" not in (tmp_path / "log").read_text()
        finally:
            node.kill()
            node.wait()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ca": "ours", "key": "theirs"}, "does not know the key"),
        ({"ca": "ours"}, "admits only nodes with a key that it knows: give --key"),
        ({"ca": "theirs", "key": "theirs"}, "was not signed by"),
        ({}, "speaks TLS: give its certificate"),
    ],
)
def test_a_node_that_is_refused_ends_with_one_line_that_says_what_to_do(secure, wrong, given, says, tmp_path):
    files = {"ours": {"ca": secure.state / "tls" / "ca.pem"}, "theirs": {"ca": wrong / "ca.pem", "key": wrong / "key"}}
    words = ["--superlink", secure.address, "--data", "tests.federation.nodes:clients", "--state", tmp_path / "state"]
    words += [word for name, whose in given.items() for word in (f"--{name}", files[whose][name])]
    done = secure.command("flower", "node", "x", *words, check=False)
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[-1]
    assert len(online(secure)) == 1
    assert says in json.loads((tmp_path / "state" / "ready.json").read_text())["problem"]


def test_a_process_without_the_secret_gets_no_task_from_a_node(secure):
    from corymb.engines.flower.private import CLIENT, Link, acquire, runtime_client

    runtime = json.loads((secure.state / "nodes" / "node-0" / "node.json").read_text())["runtime"]
    for secret in (None, b"guessed"):
        client = runtime_client(Link(runtime, secret=secret), "test", patience=5)
        with closing(client), pytest.raises(httpx.HTTPStatusError) as refused:
            acquire(client, CLIENT)
        assert refused.value.response.status_code in (401, 403)


def test_keys_and_secrets_are_for_their_owner_only(secure):
    private = [secure.state / "secret", secure.state / "nodes/node-0/secret", secure.state / "nodes/node-0/key"]
    private += [secure.state / "tls/ca.key", secure.state / "tls/server.key"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in private)
    assert secure.command("flower", "doctor").stdout.count("WRONG") == 0


@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="makes a key as the page says")
def test_a_node_is_admitted_manually_as_documented(tmp_path):
    """docs/how-to/flower.md, on several machines: a key, its registration by `flwr`, a node, a run."""
    made = Federation(tmp_path, **{"nodes = 3": "nodes = 1"})
    made.command("flower", "up", "--nodes", 0, "--tls")
    environment = {**os.environ, **QUIET, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    there = {"cwd": tmp_path, "env": {**environment, "FLWR_HOME": ".federation/flower"}, "check": True}
    try:
        subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", "site-a"], **there)
        subprocess.run([program("flwr"), "supernode", "register", "site-a.pub", "corymb"], **there)
        words = ["flower", "node", "site-a", "--superlink", made.address, "--data", "tests.federation.nodes:clients"]
        words += ["--state", tmp_path / "site", "--ca", ".federation/tls/ca.pem", "--key", "site-a", "--device", "cpu"]
        with (tmp_path / "log").open("w") as log:
            command = [sys.executable, "-m", "corymb", *map(str, words)]
            node = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
        try:
            done = made.command("flower", "run", "--json", "-q", timeout=280)
        finally:
            node.terminate()
            node.wait(timeout=30)
        assert len(json.loads(done.stdout)["labels"]) == 7
        assert json.loads(done.stdout)["rejected"] == []
    finally:
        made.command("flower", "down")
