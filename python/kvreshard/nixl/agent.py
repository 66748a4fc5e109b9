"""The one place that talks to NIXL: typed, and every exception translated.

NIXL ships no types, its exceptions share no base, and several of its calls misbehave silently when given the wrong
dtype. What the rest of the package may do with an agent is exactly what `Agent` offers.
"""

from __future__ import annotations

import importlib
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NewType, Protocol

import numpy as np
import numpy.typing as npt

from .errors import (
    AgentError,
    MetadataError,
    NixlError,
    NotRegistered,
    PeerLost,
    RegistrationError,
    TransferError,
    Untracked,
)

Rows = npt.NDArray[np.uint64]
"""Descriptors: shape (N, 3) `address, length, device` or (N, 5) `address, length, device, stride, count`; bytes."""

Ids = npt.NDArray[np.int32]
"""Descriptor numbers of a prepared list, shape (N,)."""

Operation = Literal["READ", "WRITE"]

MAX_PARKED = 256
"""Peers that are kept loaded though nobody is connected with them."""

GET_ZCOPY = "UCX_CUDA_IPC_ENABLE_GET_ZCOPY"
"""What UCX needs to read device memory of the same host directly."""

Registration = NewType("Registration", object)
Prepared = NewType("Prepared", object)
Handle = NewType("Handle", object)


class NixlAgent(Protocol):
    """What is used of `nixl.nixl_agent` (1.5)."""

    name: str

    def register_memory(self, reg_list: Any, mem_type: str) -> Any: ...
    def deregister_memory(self, dereg_list: Any) -> None: ...
    def get_agent_metadata(self) -> bytes: ...
    def add_remote_agent(self, metadata: bytes) -> bytes | str: ...
    def remove_remote_agent(self, agent: str) -> None: ...
    def check_remote_metadata(self, agent: str) -> bool: ...
    def get_xfer_descs(self, descs: Any, mem_type: str) -> Any: ...
    def prep_xfer_dlist(self, agent_name: str, xfer_list: Any, mem_type: str) -> Any: ...
    def make_prepped_xfer(
        self, operation: str, local: Any, local_ids: Any, remote: Any, remote_ids: Any, notif_msg: bytes
    ) -> Any: ...
    def initialize_xfer(self, operation: str, local: Any, remote: Any, remote_agent: str, notif_msg: bytes) -> Any: ...
    def transfer(self, handle: Any) -> str: ...
    def check_xfer_state(self, handle: Any) -> str: ...
    def get_xfer_telemetry(self, handle: Any) -> Any: ...
    def release_xfer_handle(self, handle: Any) -> None: ...
    def release_dlist_handle(self, handle: Any) -> None: ...
    def get_new_notifs(self) -> Mapping[str, Sequence[bytes]]: ...
    def send_notif(self, remote_agent_name: str, notif_msg: bytes) -> None: ...


@dataclass(frozen=True)
class Measured:
    """NIXL's account of one finished handle: descriptors posted after merging, bytes, and seconds."""

    posted: int
    bytes: int
    post_seconds: float
    seconds: float


# What NIXL's code means depends on the call; these mean the same everywhere.
_LOST = {"nixlRemoteDisconnectError"}


def _is_nixl(error: Exception) -> bool:
    return type(error).__name__.startswith("nixl") and type(error).__module__.endswith("_bindings")


@contextmanager
def _calling(
    action: str,
    kind: type[NixlError],
    *,
    peer: str | None = None,
    absent: type[NixlError] | None = None,
    broken: type[NixlError] | None = None,
) -> Iterator[None]:
    """Translates what NIXL raises inside: a lost connection to `PeerLost`, not found to `absent`, a failure of the
    transport to `broken`, anything else to `kind`.
    """
    try:
        yield
    except NixlError:
        raise
    except Exception as error:
        # RuntimeError and TypeError come from the binding layer; they are as much a refusal as NIXL's own.
        if not _is_nixl(error) and not isinstance(error, (RuntimeError, TypeError, ValueError, IndexError)):
            raise
        name = type(error).__name__
        chosen = kind
        if name in _LOST:
            chosen = PeerLost
        elif name == "nixlNotFoundError" and absent is not None:
            chosen = absent
        elif name == "nixlBackendError" and broken is not None:
            chosen = broken
        where = f" (peer {peer})" if peer else ""
        raise chosen(f"NIXL could not {action}{where}: {error}", peer=peer, code=str(error)) from error


def open_agent(name: str, *, progress_thread: bool, telemetry: bool, threads: int = 0) -> Agent:
    """A UCX agent of our own.

    With an NVIDIA device present, `UCX_CUDA_IPC_ENABLE_GET_ZCOPY=y` is put into the environment unless it says
    otherwise: without it UCX reads device memory of the same host through TCP, at half a gigabyte a second. (Without a
    device UCX warns about a setting that nothing reads.)
    """
    nixl: Any = importlib.import_module("nixl")
    if Path("/dev/nvidiactl").exists():
        os.environ.setdefault(GET_ZCOPY, "y")
    config = nixl.nixl_agent_config(
        enable_prog_thread=progress_thread,
        capture_telemetry=telemetry,
        num_threads=threads,
        backends=["UCX"],
        # The connector serialises its own calls; the lock covers NIXL's progress thread.
        sync_mode=nixl.nixl_thread_sync_t.NIXL_THREAD_SYNC_RW,
    )
    with _calling("create an agent", AgentError):
        return Agent(nixl.nixl_agent(name, config), owned=True)


class Agent:
    """A NIXL agent, ours (`owned`) or a host's."""

    def __init__(self, nixl: NixlAgent, *, owned: bool) -> None:
        self._nixl: NixlAgent | None = nixl
        self._loaded: dict[str, bytes] = {}
        self._parked: OrderedDict[str, None] = OrderedDict()
        self.name = nixl.name
        self.owned = owned

    @property
    def _agent(self) -> NixlAgent:
        if self._nixl is None:
            raise AgentError("the NIXL agent is gone")
        return self._nixl

    # Memory

    def register(self, base: int, size: int, device: int, memory: str) -> Registration:
        """Registers `size` bytes from address `base`."""
        with _calling(f"register {size} bytes of {memory} at {base:#x}", RegistrationError):
            return Registration(self._agent.register_memory([(base, size, device, "")], memory))

    def deregister(self, registration: Registration) -> None:
        """Undoes `register`."""
        with _calling("deregister memory", AgentError):
            self._agent.deregister_memory(registration)

    # Peers

    def metadata(self) -> bytes:
        """What a peer's `add` takes: connection data and the registrations so far."""
        with _calling("export metadata", AgentError):
            return self._agent.get_agent_metadata()

    def add(self, metadata: bytes, expected: str) -> str:
        """Loads a peer's metadata, `expected` to be of the agent of that name; returns the name that it is of. Raises
        `PeerLost` where nothing answers at its address.
        """
        if expected in self._parked:
            del self._parked[expected]
            if self._loaded[expected] == metadata:
                return expected
            self.remove(expected)
        with _calling("load a peer's metadata", MetadataError, broken=PeerLost):
            name = self._agent.add_remote_agent(metadata)
        found = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
        self._loaded[found] = metadata
        return found

    def park(self, peer: str) -> None:
        """Keeps the metadata of a peer that nobody needs now, for the next `add` of it.

        Each time that NIXL loads and forgets a peer, one socket stays open on both sides (1.5.1: of 30 rounds, 30).
        """
        if not self.owned or peer not in self._loaded:
            self.remove(peer)
            return
        self._parked[peer] = None
        while len(self._parked) > MAX_PARKED:
            self.remove(self._parked.popitem(last=False)[0])

    def remove(self, peer: str) -> None:
        """Forgets a peer. This stops no transfer: bytes of one in flight still land, and its state cannot be asked any
        more.
        """
        self._loaded.pop(peer, None)
        self._parked.pop(peer, None)
        with _calling("remove a peer", AgentError, peer=peer):
            self._agent.remove_remote_agent(peer)

    def knows(self, peer: str) -> bool:
        """Whether the peer's metadata is loaded; true of a dead peer too."""
        with _calling("look a peer up", AgentError, peer=peer):
            return self._agent.check_remote_metadata(peer)

    # Transfers

    def prepare(self, peer: str | None, rows: Rows, memory: str) -> Prepared:
        """Prepares strided rows (N, 5): of this rank when `peer` is `None`, of a peer otherwise."""
        side = "NIXL_INIT_AGENT" if peer is None else peer
        with _calling("prepare descriptor rows", TransferError, peer=peer, absent=NotRegistered):
            return Prepared(self._agent.prep_xfer_dlist(side, rows, memory))

    def make_prepared(
        self, operation: Operation, local: Prepared, local_ids: Ids, remote: Prepared, remote_ids: Ids, notice: bytes
    ) -> Handle:
        """A transfer of numbered descriptors of two prepared lists."""
        if local_ids.dtype != np.int32 or remote_ids.dtype != np.int32:
            # NIXL casts any other dtype to 32 bits without a word and moves other blocks.
            raise TransferError(f"descriptor ids must be int32, not {local_ids.dtype} and {remote_ids.dtype}")
        with _calling("make a transfer", TransferError):
            return Handle(
                self._agent.make_prepped_xfer(operation, local, local_ids, remote, remote_ids, notif_msg=notice)
            )

    def make_exact(
        self, operation: Operation, peer: str, local: tuple[Rows, str], remote: tuple[Rows, str], notice: bytes
    ) -> Handle:
        """A transfer of exact lists, each (N, 3) rows with their memory kind."""
        with _calling("make a transfer", TransferError, peer=peer, absent=NotRegistered):
            ours = self._agent.get_xfer_descs(*local)
            theirs = self._agent.get_xfer_descs(*remote)
            return Handle(self._agent.initialize_xfer(operation, ours, theirs, peer, notif_msg=notice))

    def post(self, handle: Handle, peer: str) -> bool:
        """Starts a transfer; true when it is already done. Over shared memory this call copies all bytes itself."""
        with _calling("post a transfer", TransferError, peer=peer, absent=NotRegistered):
            return self._agent.transfer(handle) == "DONE"

    def done(self, handle: Handle, peer: str) -> bool:
        """Whether a posted transfer is done. Raises when it failed: `PeerLost` means that nothing more can land."""
        with _calling("finish a transfer", TransferError, peer=peer, absent=Untracked):
            return self._agent.check_xfer_state(handle) == "DONE"

    def measured(self, handle: Handle) -> Measured | None:
        """NIXL's telemetry of a transfer that is DONE (before that it reads memory in use); `None` when it records
        none.
        """
        try:
            with _calling("read telemetry", AgentError):
                found = self._agent.get_xfer_telemetry(handle)
        except AgentError:
            return None
        return Measured(
            posted=int(found.descCount),
            bytes=int(found.totalBytes),
            post_seconds=float(found.postDuration) * 1e-6,
            seconds=float(found.xferDuration) * 1e-6,
        )

    def release(self, handle: Handle) -> None:
        """Frees a handle that is done or has failed, or was never posted. It is no cancellation."""
        with _calling("release a transfer", AgentError):
            self._agent.release_xfer_handle(handle)

    def release_prepared(self, prepared: Prepared) -> None:
        """Frees a prepared list."""
        with _calling("release descriptor rows", AgentError):
            self._agent.release_dlist_handle(prepared)

    # Notices

    def notices(self) -> Mapping[str, Sequence[bytes]]:
        """Takes what has arrived, by sender. Also drives NIXL's progress where it has no thread of its own."""
        with _calling("fetch notices", AgentError):
            return self._agent.get_new_notifs()

    def notify(self, peer: str, message: bytes) -> None:
        """Sends a message bound to no transfer."""
        with _calling("notify a peer", TransferError, peer=peer, absent=PeerLost):
            self._agent.send_notif(peer, message)

    def shut(self) -> None:
        """Lets go of the agent. One of ours ends with that, and with it every transfer it had in flight."""
        self._nixl = None
