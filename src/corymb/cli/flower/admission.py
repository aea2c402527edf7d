"""Checks whether a SuperLink admits a node; problems with its files, connection or clock are reported in one line.

Flower only logs them, if at all, and retries forever.
"""

from __future__ import annotations

import http.client
import ssl
import time
from email.utils import parsedate_to_datetime
from pathlib import Path

from corymb.settings import InvalidInput, require, split_address

PLAIN = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""OpenSSL's reasons if the server answers in plain text."""
SECONDS = 5.0
"""Seconds to wait for a SuperLink's answer."""
AHEAD, BEHIND = 5.0, 300.0
"""Seconds that a node's clock may differ from the SuperLink's: Flower's own limits."""
NOT_YET, EXPIRED = 9, 10
NAMES = (62, 64)
"""OpenSSL's codes: a certificate is not yet valid, or has expired; it is for another host name, or another address."""


def check_files(ca: Path | None, key: Path | None) -> None:
    """Require a certificate in `ca`, and in `key` a private key that Flower accepts."""
    for file in (ca, key):
        require(file is None or file.is_file(), f"There is no file {file}.")
    if ca is not None:
        _check_certificate(ca)
    if key is not None:
        _check_key(key)


def _check_certificate(ca: Path) -> None:
    from cryptography import x509

    try:
        x509.load_pem_x509_certificate(ca.read_bytes())
    except ValueError:
        raise InvalidInput(
            f"{ca} holds no certificate (--ca): take ca.pem from .federation/tls/ on the SuperLink's machine."
        ) from None


def _check_key(key: Path) -> None:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    data = key.read_bytes()
    make = f'ssh-keygen -t ecdsa -b 384 -N "" -f {key.stem}'
    public = data.startswith((b"ecdsa-", b"ssh-"))
    require(not public, f"{key} is a public key (--key): give the private one, which is next to it.")
    try:
        found = load_ssh_private_key(data, None)
    except TypeError:  # raised if the key needs a passphrase
        raise InvalidInput(
            f"{key} has a passphrase (--key), which nobody could enter: {make} makes one without."
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidInput(f"{key} is not a private key in OpenSSH's format (--key): {make} makes one.") from None
    good = isinstance(found, EllipticCurvePrivateKey)
    require(good, f"{key} is not an elliptic-curve key (--key), as Flower requires: {make} makes one.")


def connection_problem(superlink: str, ca: Path | None) -> str | None:
    """Why a connection to a SuperLink will fail; empty if it will not, None if the SuperLink does not answer now."""
    try:
        return _clock(superlink, ca)
    except ssl.SSLCertVerificationError as error:
        return _certificate(superlink, ca, error)
    except ssl.SSLError as error:
        how = "leave --ca and --key out, or start it with `corymb flower up --tls`"
        return f"The SuperLink at {superlink} does not speak TLS: {how}." if error.reason in PLAIN else None
    except (OSError, http.client.HTTPException):
        if ca is None and _speaks_tls(superlink):
            return f"The SuperLink at {superlink} speaks TLS: give its certificate, --ca ca.pem, and this node's --key."
        return None


def _clock(superlink: str, ca: Path | None) -> str | None:
    """Compare the clocks: nodes sign their requests with their own time."""
    host, port = split_address(superlink)
    connection: http.client.HTTPConnection
    if ca is None:
        connection = http.client.HTTPConnection(host, port, timeout=SECONDS)
    else:
        context = ssl.create_default_context(cafile=str(ca))
        connection = http.client.HTTPSConnection(host, port, timeout=SECONDS, context=context)
    try:
        connection.request("GET", "/")
        date = connection.getresponse().getheader("Date")
    finally:
        connection.close()
    if date is None:
        return ""
    try:
        ahead = time.time() - parsedate_to_datetime(date).timestamp()
    except ValueError:
        return ""
    if -BEHIND <= ahead <= AHEAD + 1:  # the answer is in whole seconds
        return ""
    how = f"{abs(ahead):,.0f} s {'ahead of' if ahead > 0 else 'behind'}"
    return (
        f"This machine's clock is {how} the SuperLink's at {superlink}: set it. Flower admits nodes up to {AHEAD:.0f} "
        f"s ahead and {BEHIND:.0f} s behind."
    )


def _certificate(superlink: str, ca: Path | None, error: ssl.SSLCertVerificationError) -> str:
    begin = f"The certificate of the SuperLink at {superlink}"
    if error.verify_code in NAMES:
        return (
            f"{begin} is not for that address: on its machine, add it to names in federation.toml, remove "
            ".federation/tls and start it again with --tls."
        )
    if error.verify_code in (NOT_YET, EXPIRED):
        when = "not valid yet" if error.verify_code == NOT_YET else "no longer valid"
        return f"{begin} is {when}: set this machine's clock, or make another (remove .federation/tls there)."
    return f"{begin} was not signed by {ca} (--ca): take ca.pem from .federation/tls/ on the SuperLink's machine."


def _speaks_tls(superlink: str) -> bool:
    """Whether a server completes a TLS handshake; its identity is not checked, and nothing is sent to it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, port = split_address(superlink)
    connection = http.client.HTTPSConnection(host, port, timeout=SECONDS, context=context)
    try:
        connection.connect()
    except OSError:
        return False
    finally:
        connection.close()
    return True
