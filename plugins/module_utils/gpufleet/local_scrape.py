# SPDX-License-Identifier: Apache-2.0
"""Asks an exporter on this node for its metrics, as Prometheus would."""

from __future__ import annotations

import urllib.request

_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1", "[::]": "::1"}


def metrics_url(address: str, port: int) -> str:
    """Where to ask an exporter that listens on an address: a wildcard is asked at the loopback address."""
    host = _LOOPBACK.get(address, address)
    if ":" in host and not host.startswith("["):
        host = "[" + host + "]"
    return f"http://{host}:{port}/metrics"


def scrape(url: str, limit_s: float) -> str:
    """The text of the metrics. Raises OSError or ValueError where nobody answers within limit_s seconds."""
    # Never through a proxy: the exporter is on this node.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=limit_s) as answer:
        text: str = answer.read().decode("utf-8", "replace")
        return text
