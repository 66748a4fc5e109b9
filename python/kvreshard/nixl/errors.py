"""What can go wrong between this rank and its peers, as exceptions that derive from `kvreshard.Error`.

NIXL's own exceptions have no common base and carry only a code; one of them leaves this package only inside one of
these, with the peer, the request and NIXL's code as attributes.
"""

from __future__ import annotations

import kvreshard as kvr


class NixlError(kvr.Error):
    """Base of what `kvreshard.nixl` raises or reports.

    Besides the attributes of `kvreshard.Error` (`layer`, `field`, `found`, `expected`, `remedy`, ...; `None` where one
    does not apply) it has `peer` (the NIXL agent name of the other side), `request` (the request id) and `code` (NIXL's
    name for the failure, such as `NIXL_ERR_REMOTE_DISCONNECT`).
    """

    peer: str | None = None
    request: str | None = None
    code: str | None = None

    def __init__(self, message: str, **attributes: object) -> None:
        super().__init__(message)
        for name, value in attributes.items():
            setattr(self, name, value)


class TransferError(NixlError):
    """NIXL refused a transfer, or one failed while its peer stayed connected."""


class PeerLost(TransferError):
    """The connection to a peer is gone: it died, left, or one bad address tore the connection down. It can be connected
    anew.
    """


class DeadlinePassed(TransferError):
    """A transfer took longer than it was given. Its pages stay held: only its end, not its release, stops it."""


class Cancelled(TransferError):
    """The caller gave the request up."""


class LeaseOver(TransferError):
    """The pages were not held any more when the transfer was to begin or had ended: what it brought may be of another
    request.
    """


class Untracked(TransferError):
    """The peer was removed from the agent under a transfer in flight: bytes may still land, nothing tells when."""


class NotConnected(NixlError):
    """The peer was lost, replaced by a newer connection, or never connected."""


class PeerBusy(NixlError):
    """Transfers with the peer are in flight, and nothing short of their end would stop them writing."""


class NotRegistered(NixlError):
    """Memory that no registration of this connector (or, on the far side, of the peer) covers."""


class NotPublished(NixlError):
    """The connector has no layout yet, so nothing can be planned or told to peers."""


class RegistrationError(NixlError):
    """NIXL refused to register memory, the memory overlaps a registration without lying inside it, or there is none for
    staging.
    """


class TensorMismatch(NixlError, kvr.LayoutError):
    """A tensor's shape or strides contradict its page format; `layer`, `field` (the axis), `found`, `expected`."""


class MetadataError(NixlError, kvr.WireError):
    """A peer's metadata does not decode, is too large, or contradicts itself."""


class Unsupported(NixlError):
    """A combination that this connector cannot carry out; the message says what would be needed."""


class AgentError(NixlError):
    """A NIXL call failed that concerns neither one transfer nor one peer."""


class Closed(NixlError):
    """The connector was closed."""
