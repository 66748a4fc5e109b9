"""The connector: registers KV memory with NIXL, tells peers its layout, and issues what the planner says.

Needs `nixl` and `msgspec`. `Connector` is all that most callers use; `poll` returns the events, errors derive from
`kvreshard.Error`. No offset is computed here: descriptors come from `kvreshard.plan`.
"""

from .calibrate import calibrate, time_path
from .connector import Connector
from .contact import FirstContact
from .errors import (
    AgentError,
    Cancelled,
    Closed,
    DeadlinePassed,
    LeaseOver,
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
from .events import (
    Arrived,
    Event,
    Failed,
    Finished,
    Freed,
    LeaseEnded,
    PeerDown,
    Predicted,
    Released,
    Share,
    Telemetry,
)
from .metrics import Metrics
from .order import Options
from .path import Path
from .peer import Peer

__all__ = [
    "AgentError",
    "Arrived",
    "Cancelled",
    "Closed",
    "Connector",
    "DeadlinePassed",
    "Event",
    "Failed",
    "Finished",
    "FirstContact",
    "Freed",
    "LeaseEnded",
    "LeaseOver",
    "MetadataError",
    "Metrics",
    "NixlError",
    "NotConnected",
    "NotPublished",
    "NotRegistered",
    "Options",
    "Path",
    "Peer",
    "PeerBusy",
    "PeerDown",
    "PeerLost",
    "Predicted",
    "RegistrationError",
    "Released",
    "Share",
    "Telemetry",
    "TensorMismatch",
    "TransferError",
    "Unsupported",
    "Untracked",
    "calibrate",
    "time_path",
]
