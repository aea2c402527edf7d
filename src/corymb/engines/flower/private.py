"""All uses of Flower's private API, in one place: its names move between minor versions.

`tests/engines/flower/test_private.py` names each one that has moved.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Turns off Flower's telemetry, update checks and installation of apps' dependencies."""
for _name, _value in QUIET.items():
    os.environ.setdefault(_name, _value)  # before flwr is imported, which reads them

import httpx  # noqa: E402
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey  # noqa: E402
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key  # noqa: E402
from flwr.app import Context, Error, Message, Metadata  # noqa: E402
from flwr.app.message import make_message, remove_content_from_message  # noqa: E402
from flwr.cli.build import build_fab_from_files  # noqa: E402
from flwr.common.constant import ErrorCode, Status, SubStatus  # noqa: E402
from flwr.common.serde import (  # noqa: E402
    context_from_proto,
    context_to_proto,
    fab_to_proto,
    message_to_proto,
    run_from_proto,
    user_config_from_proto,
    user_config_to_proto,
)
from flwr.proto.control_pb2 import (  # noqa: E402
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.proto.node_pb2 import Node as NodeProto  # noqa: E402
from flwr.proto.runtime_pb2 import (  # noqa: E402
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE, TaskType  # noqa: E402
from flwr.supercore.control.control_http_client import ControlHttpClient  # noqa: E402
from flwr.supercore.fab import Fab  # noqa: E402
from flwr.supercore.inflatable.inflatable_object import (  # noqa: E402
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (  # noqa: E402
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (  # noqa: E402
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.interceptors import (  # noqa: E402
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes  # noqa: E402
from flwr.supercore.retry import RetryInvoker, RetryState, exponential  # noqa: E402
from flwr.supercore.run import RunNotRunningException  # noqa: E402
from flwr.supercore.runtime import RuntimeHttpClient  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402
from flwr.superlink.grid import HttpGrid  # noqa: E402

from corymb.pids import has_ended, this_process  # noqa: E402
from corymb.settings import InvalidInput  # noqa: E402

log = logging.getLogger(__name__)
logging.getLogger("flwr").setLevel(logging.WARNING)  # it logs every step
HEARTBEAT = 15.0
"""Seconds between heartbeats of a task; Flower considers it dead after 60 s without one."""
STALLED = 60.0
"""A reply of which nothing has arrived for this many seconds counts as lost: its node died while sending it."""
FIRST_LOOK, LAST_LOOK = 0.05, 0.5
"""The first and the longest wait, in seconds, between polls for the objects of a message; Flower's are 1 s and 10 s."""
DRIVER = "driver"
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
FAB_FILES = {
    "pyproject.toml": b"""[project]
name = "corymb"
version = "0.1.0"
dependencies = []

[tool.flwr.app]
publisher = "corymb"

[tool.flwr.app.components]
serverapp = "corymb.flower_app:server"
clientapp = "corymb.flower_app:app"

[tool.flwr.app.config]
driver = ""
""",
    "README.md": b"Holds no code: nodes have theirs.\n",
}
"""The files of the app that Flower requires and sends to nodes; it has no code."""


class Link(NamedTuple):
    """How to reach a SuperLink, or the runtime of a SuperNode."""

    address: str
    ca: bytes | None = None
    """The certificate of the authority that signed the server's; without one, the connection is plain text."""
    secret: bytes | None = None
    """The secret shared with the processes that may take tasks."""


def _retrying(seconds: float | None, address: str) -> RetryInvoker:
    """Retries for up to `seconds` (None: forever) while a server cannot be reached.

    Flower's own retry invoker ends the process if the server refuses the request.
    """
    how_long = "" if seconds is None else f" for {seconds:.0f} s"

    def away(state: RetryState) -> None:
        level = logging.WARNING if state.tries == 1 else logging.INFO
        log.log(level, "no answer from %s (%s): trying again%s", address, state.exception, how_long)

    def final(error: Exception) -> bool:
        if isinstance(error, httpx.HTTPStatusError):
            return error.response.status_code not in (502, 503, 504)
        return any(word in str(error).lower() for word in ("certificate", "ssl", "tls"))

    return RetryInvoker(
        lambda: exponential(base_delay=0.5, max_delay=5),
        (httpx.TransportError, httpx.HTTPStatusError),
        max_tries=None,
        max_time=seconds,
        on_backoff=away,
        should_giveup=final,
    )


def runtime_client(link: Link, component: str, token: str = "", patience: float | None = None) -> RuntimeHttpClient:
    """A client of a runtime: with the token of a task to work on it, without one to take tasks."""
    interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name=component)]
    if token:
        interceptors.append(RuntimeTokenHttpInterceptor(token))
    elif link.secret:
        interceptors.append(SuperExecAuthHttpInterceptor(master_secret=link.secret, protected_methods={ACQUIRE}))
    return RuntimeHttpClient.from_server_address(
        link.address, link.ca is None, link.ca, interceptors, retry_invoker=_retrying(patience, link.address)
    )


@contextmanager
def _control(link: Link) -> Iterator[ControlHttpClient]:
    """A client of the SuperLink's control interface."""
    version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
    client = ControlHttpClient.from_server_address(
        link.address, link.ca is None, link.ca, [version], retry_invoker=_retrying(20, link.address)
    )
    try:
        yield client
    finally:
        client.close()


def start_run(link: Link) -> int:
    """Start a run of the app without code at the SuperLink; returns its id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Flower's own imports
        fab, _ = build_fab_from_files(FAB_FILES)
    request = StartRunRequest(
        fab=fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {})),
        override_config=user_config_to_proto({DRIVER: this_process()}),
    )
    with _control(link) as client:
        return int(client.StartRun(request).run_id)


def stop_runs_of_ended_drivers(link: Link) -> list[int]:
    """Stop runs whose driver was killed on this machine; returns their ids.

    Flower itself takes a minute or two to notice, during which nodes wait for the rest of the driver's last message.
    """
    stopped = []
    with _control(link) as client:
        for number, run in client.ListRuns(ListRunsRequest(limit=100)).run_dict.items():
            driver = user_config_from_proto(run.override_config).get(DRIVER)
            if run.status.status == Status.FINISHED or not isinstance(driver, str) or not has_ended(driver):
                continue
            try:
                client.StopRun(StopRunRequest(run_id=number))
                stopped.append(number)
            except httpx.HTTPStatusError as error:  # it ended meanwhile
                log.info("run %d could not be stopped: %s", number, error)
    return stopped


def register_node(link: Link, public_key: bytes) -> None:
    """Admit the node with this public key; does nothing if it is registered already."""
    with _control(link) as client:
        try:
            client.RegisterNode(RegisterNodeRequest(public_key=public_key_to_bytes(_elliptic(public_key))))
        except httpx.HTTPStatusError as error:
            if "in use" not in error.response.text.lower():
                raise


def _elliptic(public_key: bytes) -> EllipticCurvePublicKey:
    key = load_ssh_public_key(public_key)
    if not isinstance(key, EllipticCurvePublicKey):
        raise InvalidInput("A node's key must be an elliptic-curve key, such as ecdsa-sha2-nistp384.")
    return key


def nodes_online(link: Link) -> list[str]:
    """The ids of the nodes that the SuperLink lists as online."""
    with _control(link) as client:
        return [
            str(node.node_id) for node in client.ListNodes(ListNodesRequest()).nodes_info if node.status == "online"
        ]


class _Arriving:
    """A message that was announced but may not have arrived: collects its objects one by one."""

    def __init__(self, tree: Any, pull: Callable[[str], bytes]) -> None:
        self._name, self._pull = tree.object_id, pull
        self._objects = [part.object_id for part in iterate_object_tree(tree)]
        self._contents: dict[str, bytes] = {}
        self._heard = time.monotonic()

    def read(self) -> bool:
        """Read the objects that have arrived; returns whether the message is complete.

        Raises ObjectPullError if no more will arrive.
        """
        for name in self._objects:
            if name not in self._contents:
                try:
                    self._contents[name] = self._pull(name)
                except ObjectUnavailableError:
                    return False
                self._heard = time.monotonic()
        return True

    @property
    def silent(self) -> float:
        """Seconds since the last object arrived."""
        return time.monotonic() - self._heard

    def message(self) -> Message:
        """The message; requires that it is complete."""
        message = cast(Message, inflate_object_from_contents(self._name, self._contents))
        message.metadata.__dict__["_message_id"] = self._name
        return message


def acquire(client: RuntimeHttpClient, kind: str) -> str:
    """Take the oldest task of a kind; returns its token, empty if there is none."""
    reply = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
    return str(reply.token) if reply.HasField("task") and reply.token else ""


SERVER, CLIENT = TaskType.SERVER_APP, TaskType.CLIENT_APP


@contextmanager
def heartbeats(client: RuntimeHttpClient) -> Iterator[threading.Event]:
    """Send heartbeats for a task while the block runs; the event is set if its server has abandoned the task."""
    ended, lost = threading.Event(), threading.Event()

    def beat() -> None:
        while not ended.wait(HEARTBEAT):
            try:
                if not client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success:
                    lost.set()
            except httpx.HTTPStatusError:
                lost.set()
            except Exception as error:  # the server may come back
                log.info("a heartbeat could not be sent: %s", error)

    thread = threading.Thread(target=beat, daemon=True, name="corymb-heartbeat")
    thread.start()
    try:
        yield lost
    finally:
        ended.set()


def run_ended(error: Exception) -> bool:
    """Whether an error means that the task's run has ended."""
    ended = isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (401, 403)
    return ended or isinstance(error, RunNotRunningException)


def _lost(run: int, node: int, reply_to: str, why: str) -> Message:
    """An error message in place of a reply that did not arrive completely, as Flower's own grid makes it."""
    metadata = Metadata(
        run_id=run,
        message_id="",
        src_node_id=node,
        dst_node_id=node,
        message_type=SYSTEM_MESSAGE_TYPE,
        group_id="",
        ttl=0,
        reply_to_message_id=reply_to,
        created_at=time.time(),
    )
    return make_message(metadata=metadata, error=Error(code=ErrorCode.MESSAGE_UNAVAILABLE, reason=why))


class ServerTask:
    """The ServerApp of a run, in this process."""

    def __init__(self, link: Link, token: str) -> None:
        self.grid = HttpGrid(link.address, link.ca is None, link.ca, token=token)
        self.grid._retry_invoker = _retrying(None, link.address)
        given = self.grid._runtime_client.PullTaskInput(PullTaskInputRequest())
        self._identity = (given.task_id, given.run.run_id, given.context.node_id)
        self.run_id = int(given.run.run_id)
        self._context = context_from_proto(given.context)
        self.grid.set_run(run_from_proto(given.run))
        self._heartbeats = heartbeats(self.grid._runtime_client)
        self.lost = self._heartbeats.__enter__()
        self._arriving: dict[str, tuple[str, _Arriving]] = {}  # by the id of the message that they answer

    def identify(self) -> None:
        """Identify this process to Flower as this run's; it may have other runs, in other federations."""
        identify(*self._identity)

    def pull(self, names: Sequence[str]) -> list[Message]:
        """The replies to these messages that have arrived completely; each is returned once.

        Incomplete replies are left for the next poll: Flower's own grid would block until they are complete, and read
        no other reply meanwhile.
        """
        client, node = self.grid._runtime_client, self.grid.node
        pull = make_pull_object_fn_protobuf(client.PullObject, node, self.run_id)
        confirm = make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, self.run_id)
        if asked := [name for name in names if name not in self._arriving]:
            given = client.PullMessages(PullAppMessagesRequest(message_ids=asked))
            for proto, tree in zip(given.messages_list, given.message_object_trees, strict=True):
                self._arriving[proto.metadata.reply_to_message_id] = (tree.object_id, _Arriving(tree, pull))
        replies = []
        for asked_for, (name, reply) in list(self._arriving.items()):
            try:
                if reply.read():
                    confirm(name)
                    replies.append(reply.message())
                elif reply.silent < STALLED:
                    continue
                else:
                    raise ObjectPullError(name, f"nothing more of it arrived for {STALLED:.0f} s")
            except ObjectPullError as problem:
                replies.append(_lost(self.run_id, node.node_id, asked_for, str(problem)))
            del self._arriving[asked_for]
        return replies

    def finish(self, problem: str = "") -> None:
        """Tell the SuperLink that the run has ended."""
        if self.grid._client is None:
            return
        self._heartbeats.__exit__(None, None, None)
        self.grid._retry_invoker.max_tries = 1
        push_output(self.grid._runtime_client, self._context, problem)
        self.grid.close()


def identify(task: int, run: int, node: int) -> None:
    """Set this process's identity in Flower, which is required to create messages."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task, run, node


class Task(NamedTuple):
    """A message for a node, and the context that Flower wants back with the reply."""

    message: Message
    context: Context


def pull_task(client: RuntimeHttpClient, overtaken: Callable[[], bool]) -> Task | None:
    """The message of a task that was taken, or None if it will never be complete. The app's code is not loaded.

    A task can be taken before all of its message has arrived. If the driver was killed while sending, nothing reports
    that no more will arrive. But a SuperNode has one task at a time: if there is another (`overtaken`), this one has
    ended.
    """
    given = client.PullTaskInput(PullTaskInputRequest())
    identify(given.task_id, given.run.run_id, given.context.node_id)
    context = context_from_proto(given.context)
    pulled = client.PullMessages(PullAppMessagesRequest())
    if not pulled.messages_list:
        raise RuntimeError("the task has no message")
    node = NodeProto(node_id=context.node_id)
    tree = pulled.message_object_trees[0]
    arriving = _Arriving(tree, make_pull_object_fn_protobuf(client.PullObject, node, context.run_id))
    wait = FIRST_LOOK
    while not arriving.read():
        if wait >= LAST_LOOK and overtaken():
            push_output(client, context, "given up")
            return None
        time.sleep(wait)
        wait = min(wait * 2, LAST_LOOK)
    make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, context.run_id)(tree.object_id)
    return Task(arriving.message(), context)


def push_reply(client: RuntimeHttpClient, reply: Message, context: Context) -> None:
    """Send a reply to the SuperNode."""
    reply.metadata.__dict__["_message_id"] = reply.object_id
    with no_object_id_recompute():
        request = PushAppMessagesRequest(
            messages_list=[message_to_proto(remove_content_from_message(reply))],
            message_object_trees=[get_object_tree(reply)],
        )
        pushed = client.PushMessages(request)
        push_objects(
            get_all_nested_objects(reply),
            make_push_object_fn_protobuf(
                client.PushObject,
                NodeProto(node_id=context.node_id),
                run_id=context.run_id,
                session_id=pushed.session_id,
            ),
            object_ids_to_push=set(pushed.objects_to_push),
        )


def push_output(client: RuntimeHttpClient, context: Context, problem: str = "") -> None:
    """Report that a task has ended: completed or, with a `problem`, failed."""
    status = SubStatus.FAILED if problem else SubStatus.COMPLETED
    try:
        client.PushTaskOutput(
            PushTaskOutputRequest(context=context_to_proto(context), sub_status=status, details=problem)
        )
    except httpx.HTTPError as error:
        log.warning("the end of a task could not be reported: %s", error)


def delivered(message: Message) -> Message:
    """The message as it would arrive: split into the objects that Flower sends, and reassembled."""
    message.metadata.__dict__["_message_id"] = message.object_id
    with no_object_id_recompute():
        contents = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        arrived = cast(Message, inflate_object_from_contents(message.metadata.message_id, contents))
    arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
    return arrived


UNKNOWN_KEY, KEYS_ONLY, VERSION = 2004, 2001, 606
"""Flower's codes: a node could not be activated, nodes cannot register themselves, another version of Flower."""


def why_refused(code: int, message: str, known: Callable[[], bool]) -> str:
    """Why Flower ends a SuperNode for good: `key`, or Flower's message; empty if the node may be admitted later.

    `known` returns whether the SuperLink has the node's key. A node with a known key is refused only while Flower
    believes that its previous process is still running.
    """
    if f"[code: {KEYS_ONLY}]" in message or (f"[code: {UNKNOWN_KEY}]" in message and not known()):
        return "key"
    if code == VERSION or "version" in message.lower():
        return " ".join(message.split())[:300]
    return ""


def _key_is_known(options: Sequence[str]) -> bool:
    """Whether the SuperLink has the key, both as named in a SuperNode's options; True if that cannot be determined."""
    given = dict(pairwise(options))
    try:
        key = load_ssh_private_key(Path(given["--auth-supernode-private-key"]).read_bytes(), None)
        own = public_key_to_bytes(key.public_key())  # type: ignore[arg-type]
        with _control(Link(given["--superlink"], Path(given["--root-certificates"]).read_bytes())) as client:
            known = client.ListNodes(ListNodesRequest()).nodes_info
        return any(node.public_key == own and node.status != "unregistered" for node in known)
    except (KeyError, OSError, ValueError, httpx.HTTPError):
        return True


def supernode(clock: Any, refused: str | None = None) -> None:
    """Run a SuperNode in this process, with `clock` in place of the module `time`, and more frequent polls for objects.

    If the SuperLink refuses the node for good, the reason is written to the file `refused`.
    """
    from flwr.supernode import fleet_http_connection, start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode

    ends: Callable[..., NoReturn] = vars(fleet_http_connection)["flwr_exit"]

    def ending(code: int, message: str | None = None, *more: Any, **others: Any) -> NoReturn:
        why = why_refused(code, message or "", lambda: _key_is_known(sys.argv))
        if why and refused is not None:
            Path(refused).write_text(why, encoding="utf-8")
        ends(code, message, *more, **others)

    vars(fleet_http_connection).update(flwr_exit=ending)

    brisk = partial(pull_objects, initial_backoff=FIRST_LOOK, backoff_cap=LAST_LOOK, max_tries_per_object=None)
    vars(start_client_internal).update(time=clock, pull_objects=brisk)
    flower_supernode()
