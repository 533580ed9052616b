# SPDX-License-Identifier: Apache-2.0
"""Runs in the container that stands for the vendors: serves a folder on ports 80 and 443, and logs each body sent.

Usage: uplink_server.py FOLDER CERTIFICATE KEY LOG. A line of the log is `<bytes> <path>`.
"""

import shutil
import ssl
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FOLDER, CERTIFICATE, KEY, LOG = sys.argv[1:]


class Handler(SimpleHTTPRequestHandler):
    """Serves files; a HEAD request and a 304 send no body."""

    # Keeps connections open, as the vendors' servers do: one closed with requests waiting makes a cacher ask again.
    protocol_version = "HTTP/1.1"

    def copyfile(self, source: Any, outputfile: Any) -> None:
        """Send the body, and log how much was sent of it."""
        before = source.tell()
        try:
            shutil.copyfileobj(source, outputfile)
        finally:
            with open(LOG, "a") as log:
                log.write(f"{source.tell() - before} {self.path}\n")


def serve(port: int, context: "ssl.SSLContext | None" = None) -> None:
    """Answer on a port for ever."""
    server = ThreadingHTTPServer(("", port), partial(Handler, directory=FOLDER))
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain(CERTIFICATE, KEY)
threading.Thread(target=serve, args=(443, tls), daemon=True).start()
serve(80)
