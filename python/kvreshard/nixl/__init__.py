"""The connector: registers KV memory with NIXL, tells peers its layout, and issues what the planner says.

Needs `nixl` and `msgspec`. `Connector` is all that most callers use; `poll` returns the events, errors derive from
`kvreshard.Error`. No offset is computed here: descriptors come from `kvreshard.plan`.
"""

from .connector import Connector
from .errors import (
    AgentError,
    Closed,
    DeadlinePassed,
    MetadataError,
    NixlError,
    NotConnected,
    NotPublished,
    NotRegistered,
    PeerBusy,
    PeerLost,
    RegistrationError,
    TensorMismatch,
    TransferError,
    Unsupported,
    Untracked,
)
from .events import Arrived, Event, Failed, Finished, Freed, LeaseEnded, PeerDown, Released, Telemetry
from .peer import Peer

__all__ = [
    "AgentError",
    "Arrived",
    "Closed",
    "Connector",
    "DeadlinePassed",
    "Event",
    "Failed",
    "Finished",
    "Freed",
    "LeaseEnded",
    "MetadataError",
    "NixlError",
    "NotConnected",
    "NotPublished",
    "NotRegistered",
    "Peer",
    "PeerBusy",
    "PeerDown",
    "PeerLost",
    "RegistrationError",
    "Released",
    "Telemetry",
    "TensorMismatch",
    "TransferError",
    "Unsupported",
    "Untracked",
]
