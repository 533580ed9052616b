# SPDX-License-Identifier: Apache-2.0
"""What report.json counts, the attention contract, and what must not get into it."""

from __future__ import annotations

from .conftest import ALIVE, Site

SECRET = "hunter2-very-secret"


def test_host_tasks_are_counted(site: Site) -> None:
    """Skipped tasks, loop items, includes, argument validation, set_fact and group_by all cost."""
    site.inventory(gpu_nodes=f"gpu-1 {ALIVE}")
    site.write("roles/demo/meta/argument_specs.yml", "argument_specs: {main: {options: {demo_x: {type: int}}}}\n")
    site.write(
        "roles/demo/tasks/main.yml",
        """
        - name: Skip
          ansible.builtin.debug:
          when: false
        - name: Loop
          ansible.builtin.command: "true"
          loop: [a, b, c]
          changed_when: item != 'b'
        - name: Include
          ansible.builtin.include_tasks: more.yml
        """,
    )
    site.write("roles/demo/tasks/more.yml", "- name: Do more\n  ansible.builtin.command: 'true'\n")
    site.write(
        "site.yml",
        """
        - name: Platform
          hosts: gpu_nodes
          gather_facts: false
          tasks:
            - name: Group
              ansible.builtin.group_by:
                key: some
            - name: Set
              ansible.builtin.set_fact:
                x: 1
            - name: Loop over nothing
              ansible.builtin.debug:
              loop: []
            - name: Run the role
              ansible.builtin.include_role:
                name: demo
        """,
    )
    host = site.run("site.yml").report["hosts"]["gpu-1"]
    # play: group_by, set_fact, empty loop, include_role; role: validation, skip, 3 items, include, its task
    assert host["host_tasks_by_role"] == {"": 4, "demo": 7}
    assert host["host_tasks"] == 11
    assert host["skipped"] == 2
    changed = [(entry["role"], entry["task"], entry.get("item")) for entry in host["changed_tasks"]]
    assert ("demo", "Loop", "a") in changed
    assert ("demo", "Loop", "c") in changed
    assert ("demo", "Loop", "b") not in changed
    assert ("demo", "Do more", None) in changed
    assert all(entry["path"].startswith("roles/demo/tasks/") for entry in host["changed_tasks"] if entry["role"])


def test_attention_contract(site: Site) -> None:
    """Any result may ask for attention; a failed one may name its next step; text from a node is made harmless."""
    site.inventory(gpu_nodes=f"gpu-[1:4] {ALIVE}")
    site.write(
        "library/tell.py",
        """\
        #!/usr/bin/python
        from ansible.module_utils.basic import AnsibleModule

        def main():
            module = AnsibleModule(dict(bad=dict(type="bool", default=False)))
            if module.params["bad"]:
                module.fail_json(msg="clock is \\x1b[31m3 years\\x1b[0m off\\x07", next_step="set the clock by hand")
            note = dict(reason="reboot pending: new kernel", next_step="run with -e reboot_allowed=true")
            module.exit_json(gpufleet=dict(attention=[dict(note, severity="warn")], facts=dict(kernel="6.1")))

        if __name__ == "__main__":
            main()
        """,
    )
    site.write(
        "site.yml",
        """
        - name: Platform
          hosts: gpu_nodes
          gather_facts: false
          tasks:
            - name: Tell
              tell:
                bad: "{{ inventory_hostname == 'gpu-4' }}"
              when: inventory_hostname != 'gpu-1'
            - name: Tell again
              tell:
              loop: [1, 2]
              when: inventory_hostname == 'gpu-3'
        """,
    )
    result = site.run("site.yml")
    assert result.outcomes() == {"gpu-1": "ok", "gpu-2": "attention", "gpu-3": "attention", "gpu-4": "failed"}
    hosts = result.report["hosts"]
    assert hosts["gpu-3"]["attention"] == [
        {
            "reason": "reboot pending: new kernel",
            "next_step": "run with -e reboot_allowed=true",
            "severity": "warn",
            "kind": "attention",
        }
    ]
    assert hosts["gpu-2"]["facts"] == {"kernel": "6.1"}
    text = "\n".join(result.summary)
    assert "attention: gpu-[2-3] (2 nodes)" in text
    assert text.count("next:   run with -e reboot_allowed=true") == 1
    assert "reason: clock is 3 years off [Tell]" in text
    assert "next:   set the clock by hand" in text
    assert "\x1b" not in result.out
    assert "\x07" not in result.out
    assert (result.folder / "attention.limit").read_text(encoding="utf-8").split() == ["gpu-2", "gpu-3", "gpu-4"]


def test_no_log_stays_hidden(site: Site) -> None:
    site.inventory(gpu_nodes=f"gpu-[1:2] {ALIVE}")
    site.write(
        "site.yml",
        f"""
        - name: Platform
          hosts: gpu_nodes
          gather_facts: false
          vars:
            secret: {SECRET}
          tasks:
            - name: Loop over secrets
              ansible.builtin.command: echo {{{{ item }}}}
              loop: ["{{{{ secret }}}}", b]
              no_log: true
            - name: Write a secret
              ansible.builtin.copy:
                content: "{{{{ secret }}}}"
                dest: "{site.folder}/secret-{{{{ inventory_hostname }}}}"
                mode: "0600"
              no_log: true
            - name: Say a secret
              ansible.builtin.debug:
                msg: "{{{{ secret }}}}"
              no_log: true
            - name: Fail in a loop of secrets
              ansible.builtin.command: sh -c 'echo {{{{ item }}}} >&2; exit 1'
              loop: ["{{{{ secret }}}}"]
              ignore_errors: true
              no_log: true
            - name: Fail with a secret
              ansible.builtin.fail:
                msg: "{{{{ secret }}}} is wrong"
              no_log: true
        """,
    )
    for flags in ((), ("-vv",)):
        result = site.run("site.yml", "--diff", *flags)
        assert result.rc == 2
        assert set(result.outcomes().values()) == {"failed"}
        assert SECRET not in result.out
        assert SECRET not in (result.folder / "report.json").read_text(encoding="utf-8")
        assert "the output is hidden by no_log [Fail with a secret]" in "\n".join(result.summary)
        for host in ("gpu-1", "gpu-2"):
            (site.folder / f"secret-{host}").unlink()


def test_check_mode_writes_a_report(site: Site) -> None:
    site.inventory(gpu_nodes=f"gpu-1 {ALIVE}")
    site.write(
        "site.yml",
        f"""
        - name: Platform
          hosts: gpu_nodes
          gather_facts: false
          tasks:
            - name: Write a file
              ansible.builtin.copy:
                content: new
                dest: {site.folder}/file
                mode: "0644"
        """,
    )
    result = site.run("site.yml", "--check", "--diff")
    assert result.rc == 0
    assert not (site.folder / "file").exists()
    assert result.report["check"] is True
    assert result.report["options"]["check"] is True
    assert "  Write a file: gpu-1" in result.summary
    assert "Would change:" in result.summary
    assert "[check mode]" in result.out
    assert "diff of gpu-1 [Write a file]" in result.out
    assert "+new" in result.out

    applied = site.run("site.yml")
    assert applied.outcomes() == {"gpu-1": "changed"}
    assert "changed=1" in applied.out, "molecule's idempotence test looks for this"
    again = site.run("site.yml")
    assert again.outcomes() == {"gpu-1": "ok"}
    assert "changed=0" in again.out
    assert "changed=1" not in again.out
