# SPDX-License-Identifier: Apache-2.0
"""Every form in which a kernel record is printed is read, also mixed, cut, and over several boots."""

import pytest
from ansible.module_utils.gpufleet.health.kernel_log import Record, read_records
from ansible.module_utils.gpufleet.health.kernel_log_normal_form import normal_form, read_kernel_log

from tests.unit.health.kernel.kernel_node import FIRST, FIXTURES, WHEN, XID

TEXT = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
EPOCH = 1737425493.0  # 2025-01-21 02:11:33 UTC
# form -> line, time, clock, priority
FORMS = {
    "dmesg": (f"[ 1843.308145] {TEXT}", 1843.308145, "boot", None),
    "dmesg with caller": (f"[ 1843.308145] [  T771] {TEXT}", 1843.308145, "boot", None),
    "dmesg --decode": (f"kern  :err   : [ 1843.308145] {TEXT}", 1843.308145, "boot", 3),
    "dmesg --decode, written by a program": (f"user  :warn  : [ 1843.308145] {TEXT}", 1843.308145, "boot", 4),
    "dmesg -r": (f"<3>[ 1843.308145] {TEXT}", 1843.308145, "boot", 3),
    "dmesg -d": (f"[ 1843.308145 <    0.000012>] {TEXT}", 1843.308145, "boot", None),
    "dmesg -T": (f"[Tue Jan 21 02:11:33 2025] {TEXT}", EPOCH, "local", None),
    "dmesg -x -T": (f"kern  :crit  : [Tue Jan 21 02:11:33 2025] {TEXT}", EPOCH, "local", 2),
    "dmesg -e": (f"[Jan21 02:11] {TEXT}", EPOCH - 33, "local", None),
    "dmesg iso": (f"2025-01-21T02:11:33,500000+00:00 {TEXT}", EPOCH + 0.5, "epoch", None),
    "dmesg -x iso": (f"kern  :warn  : 2025-01-21T02:11:33,500000+00:00 {TEXT}", EPOCH + 0.5, "epoch", 4),
    "/dev/kmsg": (f"3,512,1843308145,-;{TEXT}", 1843.308145, "boot", 3),
    "/dev/kmsg with caller": (f"6,512,1843308145,-,caller=T12;{TEXT}", 1843.308145, "boot", 6),
    "journal short": (f"Jan 21 02:11:33 node1 kernel: {TEXT}", EPOCH, "local", None),
    "journal short-precise": (f"Jan 21 02:11:33.123456 node1 kernel: {TEXT}", EPOCH, "local", None),
    "journal short-iso": (f"2025-01-21T03:11:33+0100 node1 kernel: {TEXT}", EPOCH, "epoch", None),
    "journal short-iso-precise": (f"2025-01-21T02:11:33.500000+00:00 node1 kernel: {TEXT}", EPOCH + 0.5, "epoch", None),
    "journal short-unix": (f"1737425493.500000 node1 kernel: {TEXT}", EPOCH + 0.5, "epoch", None),
    "journal short-monotonic": (f"[ 1843.308145] node1 kernel: {TEXT}", 1843.308145, "boot", None),
    "journal short-monotonic, no host": (f"[ 1843.308145] kernel: {TEXT}", 1843.308145, "boot", None),
    "journal short-full": (f"Tue 2025-01-21 02:11:33 UTC node1 kernel: {TEXT}", EPOCH, "epoch", None),
    "syslog with the kernel's time": (f"Jan 21 02:11:33 n1 kernel: [ 1843.308145] {TEXT}", 1843.308145, "boot", None),
    "no time, tagged": (f"kernel: {TEXT}", None, "", None),
    "no time": (TEXT, None, "", None),
}


def records(text: str, when: float = EPOCH + 3600) -> list[Record]:
    return list(read_records(text, when))


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_read(form: str) -> None:
    line, time, clock, priority = FORMS[form]
    (record,) = records(line + "\n")
    assert record.text == TEXT and (record.clock, record.priority) == (clock, priority)
    assert record.time == (None if time is None else pytest.approx(time))


def test_forms_are_told_apart_line_by_line() -> None:
    text = "".join(line + "\n" for line, __, __, __ in FORMS.values())
    assert [record.text for record in records(text)] == [TEXT] * len(FORMS)


def test_deltas_count_from_the_record_before() -> None:
    found = records("[Jan21 02:11] a\n[  +0.000844] b\n[  +1.050439] c\n")
    assert [record.time for record in found] == pytest.approx(
        [EPOCH - 33, EPOCH - 33 + 0.000844, EPOCH - 33 + 1.051283]
    )
    assert [record.time for record in records("[  +0.000844] b\n")] == [None]


def test_a_date_without_a_year_is_the_latest_that_is_not_in_the_future() -> None:
    in_january = 1736000000.0  # 2025-01-04
    (record,) = records("Dec 31 23:00:00 n1 kernel: x\n", in_january)
    assert record.time == 1735686000.0  # 2024-12-31 23:00


def test_other_programs_in_a_log_file_are_no_kernel_records() -> None:
    text = "Jan 21 02:11:33 n1 sshd[12]: error: NVRM: none of this is the kernel's\n"
    assert not records(text) and not records("-- Logs begin at Sat 2021-05-29 10:50:24 UTC, end at ... --\n")


def test_lines_of_one_record_are_joined() -> None:
    kmsg = "6,1,100,-;usb 1-1: new device\n SUBSYSTEM=usb\n DEVICE=c189:2\n6,2,200,-;next\n"
    assert [record.text for record in records(kmsg)] == ["usb 1-1: new device", "next"]
    assert [record.text for record in records("[    1.000000] one\n               two\n")] == ["one two"]


LOST = ["NVRM: The NVIDIA GPU 0000:b3:00.0", "NVRM: (PCI ID: 10de:2330) installed in this system has"]
LOST_END = "NVRM: fallen off the bus and is not responding to commands."


@pytest.mark.parametrize("between", [(), ("usb 1-1: new device",)])
def test_a_sentence_over_several_records_is_joined(between: tuple[str, ...]) -> None:
    lines = [LOST[0], *between, LOST[1], LOST_END, "NVRM: The NVIDIA probe routine failed for 1 device(s)."]
    found = records("".join(f"[ 1843.30814{number}] kernel: {line}\n" for number, line in enumerate(lines)))
    joined = [record.text for record in found if "fallen" in record.text]
    assert joined == [
        "NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:2330) installed in this system has fallen off the bus and is "
        "not responding to commands."
    ]
    assert len(found) == 2 + len(between)


def test_a_sentence_that_is_not_finished_is_kept() -> None:
    assert [record.text for record in records(f"[    1.000000] {LOST[0]}\n[    2.000000] NVRM: other\n")] == [
        LOST[0],
        "NVRM: other",
    ]
    assert [record.text for record in records(f"[    1.000000] {LOST[0]}\n")] == [LOST[0]]


def test_only_the_newest_boot_counts() -> None:
    old = FIRST + XID + "79, GPU has fallen off the bus.\n"
    log = read_kernel_log(old + FIRST + "[    5.000000] all is well\n", WHEN)
    assert not log.messages and log.from_boot and log.records == 2


@pytest.mark.parametrize("mark", ["-- Reboot --", "-- Boot 0123456789abcdef0123456789abcdef --"])
def test_the_journals_mark_ends_a_boot(mark: str) -> None:
    log = read_kernel_log(f"{XID}79\n{mark}\nJan 21 02:11:33 n1 kernel: later\n", WHEN)
    assert not log.messages and not log.from_boot and log.records == 1


@pytest.mark.parametrize(
    "form", ["2025-01-21T02:11:{:02}+0000 n1 kernel: ", "Jan 21 02:11:{:02} n1 kernel: ", "<5>[   {:02}.1] "]
)
def test_the_first_message_begins_a_boot_in_every_form(form: str) -> None:
    texts = ("NVRM: Xid (PCI:0000:9b:00): 79", "Linux version 6.5.0 (x)", "later")
    log = read_kernel_log("".join(form.format(second) + text + "\n" for second, text in enumerate(texts)), WHEN)
    assert not log.messages and log.from_boot and log.records == 2


def test_a_clock_that_starts_again_begins_a_boot_whose_beginning_is_lost() -> None:
    log = read_kernel_log(f"[99999.000000] NVRM: Xid (PCI:0000:9b:00): 79\n{XID}31, pid=1\n", WHEN)
    assert list(log.messages["xid"]) == ["NVRM: Xid (PCI:0000:9b:00): 31, pid=1"] and not log.from_boot


def test_records_out_of_order_are_no_boot() -> None:
    log = read_kernel_log(f"{FIRST}[  150.000000] a\n{XID}79\n[ 9000.000000] b\n[ 8000.000000] c\n", WHEN)
    assert log.from_boot and log.records == 5 and "xid" in log.messages


def test_each_cut_is_noticed_or_leaves_whole_records() -> None:
    text = FIRST + (FIXTURES / "bugs" / "035-xid-119-rpc-history.txt").read_text()
    lines = text.splitlines(keepends=True)
    for number in range(1, len(lines) + 1):
        whole = "".join(lines[:number])
        assert not read_kernel_log(whole, WHEN).cut
        assert read_kernel_log(whole[:-5], WHEN).cut


def test_a_line_is_cut_anywhere_without_a_traceback() -> None:
    for name in ("028-xid-154-recovery-action.txt", "029-xid-144-150-nvlink5.txt", "033-xid-79-multiline-no-xid.txt"):
        text = (FIXTURES / "bugs" / name).read_text()
        for end in range(len(text)):
            read_kernel_log(text[:end], WHEN)


def test_the_normal_form_leaves_out_what_varies() -> None:
    one = normal_form("mlx5_core 0000:9c:00.0: cmd[12]: timeout. 0xffff880ab1 after 10s, b9:ff.1")
    other = normal_form("mlx5_core 0000:ff:ee.1: cmd[3]: timeout. 0xffff8fe2 after 7s, ab:cd.0")
    assert one == other and "timeout" in one
    assert normal_form("link a is down") != normal_form("link b is up")


def test_repeats_do_not_grow_the_facts() -> None:
    line = "] NVRM: Xid (PCI:0000:9b:00): 95, pid=7062, Uncontained: LTC TAG (0x2,0x1). RST: Yes, D-RST: No\n"
    log = read_kernel_log(FIRST + "".join(f"[{number:5d}.000000{line}" for number in range(1, 20001)), WHEN)
    (message,) = log.messages["xid"].values()
    assert message.occurrences == 20000 and len(message.times) <= 64 and message.last == 20000.0


def test_a_sentence_that_was_waited_for_begins_no_boot() -> None:
    text = f"{FIRST}[   20.000000] {LOST[0]}\n{XID}79\n[ 9000.000000] later\n"
    for more in ("", f"[ 9001.000000] {LOST_END}\n"):
        log = read_kernel_log(text + more, WHEN)
        assert log.from_boot and "xid" in log.messages
