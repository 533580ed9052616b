# SPDX-License-Identifier: Apache-2.0
"""Who listens on a port, from recorded tables and from this machine's own /proc."""

import os
import socket

from ansible.module_utils.gpufleet.listening_port import Listener, find_listeners, listening_sockets

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:238C 00000000:0000 0A 00000000:00000000 00:00000000 00000000   997        0 48151 1 0 100 0 0 10 0
   1: 0100007F:238C 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 62342 1 0 20 4 30 10 -1
   2: 0100007F:0019 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11111 1 0 100 0 0 10 0
"""


def test_only_listening_sockets_of_the_port_count():
    assert listening_sockets(TABLE, 9100) == {"48151": 997}
    assert listening_sockets(TABLE, 9101) == {}


def test_a_process_that_cannot_be_seen_is_known_by_its_user(tmp_path):
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(TABLE)
    assert find_listeners(9100, str(tmp_path)) == [Listener(None, "", 997)]
    assert "user id 997" in str(find_listeners(9100, str(tmp_path))[0])


def test_this_process_is_found_on_ipv4_and_ipv6():
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as own:
            own.bind((address, 0))
            own.listen()
            (listener,) = find_listeners(own.getsockname()[1])
        assert listener.pid == os.getpid()
        assert listener.command
