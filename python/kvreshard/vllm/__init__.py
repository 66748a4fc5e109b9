"""NIXL connectors for vLLM 0.33 whose transfers are planned by kvreshard.

Switched on with ``--kv-transfer-config '{"kv_connector": "NixlConnector", "kv_connector_module_path":
"kvreshard.vllm", ...}'``; ``NixlPushConnector`` is the one that pushes.
"""

from kvreshard.vllm.connector import NixlConnector, NixlPullConnector, NixlPushConnector

__all__ = ["NixlConnector", "NixlPullConnector", "NixlPushConnector"]
