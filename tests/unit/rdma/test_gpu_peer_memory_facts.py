# SPDX-License-Identifier: Apache-2.0
"""Why an HCA cannot reach GPU memory: each state, told apart by text alone."""

import pytest
from ansible.module_utils.gpufleet.gpu_peer_memory_facts import (
    ADVICE,
    STATES,
    PeerMemory,
    PeerMemoryEvidence,
    built_with_interface,
    crc_of_register,
    exports_register,
    judge_dma_buf,
    judge_module,
    kernel_version,
    parse_clients,
)
from ansible.module_utils.gpufleet.gpu_peer_memory_load import explain_load_failure
from ansible.module_utils.gpufleet.rdma_facts import LoadedModule, parse_modinfo

RELEASE = "5.15.0-139-generic"


def modinfo(depends="nvidia,ib_core", file="nvidia-peermem", release=RELEASE):
    return parse_modinfo(
        f"filename:       /lib/modules/{release}/updates/dkms/{file}.ko\nversion:        580.105.08\n"
        f"license:        Dual BSD/GPL\ndepends:        {depends}\nvermagic:       {release} SMP mod_unload\n"
    )


LOADED = LoadedModule("nvidia_peermem", "580.105.08", None, True)


def evidence(**changes):
    base = PeerMemoryEvidence(
        module=modinfo(),
        loaded=None,
        clients=None,
        stack_has_interface=True,
        wanted_crc="0x1a2b3c4d",
        offered_crc="0x1a2b3c4d",
        running=RELEASE,
        gpus=8,
        hcas=8,
    )
    return base._replace(**changes)


@pytest.mark.parametrize(
    ("seen", "state"),
    [
        (evidence(loaded=LOADED, clients=("nv_mem", "nv_mem_nc")), "ready"),
        (evidence(loaded=LOADED), "ready"),
        (evidence(loaded=LOADED, clients=()), "not_registered"),
        (evidence(), "not_loaded"),
        (evidence(module=None), "not_built"),
        (evidence(module=modinfo(release="5.15.0-1-generic")), "another_kernel"),
        # DOCA-OFED came after the driver (interfaces.md 6.3; Mellanox/nv_peer_memory#113, #116).
        (evidence(module=modinfo("nvidia")), "without_interface"),
        (evidence(module=modinfo("nvidia"), stack_has_interface=None), "without_interface"),
        # Debian's kernel: no stack with the interface at all.
        (evidence(module=modinfo("nvidia"), stack_has_interface=False), "stack_without_interface"),
        (evidence(stack_has_interface=False), "another_stack"),
        (evidence(offered_crc="0x00000001"), "another_stack"),
        (evidence(offered_crc=None), "not_loaded"),
        (evidence(attempt=PeerMemory("key_rejected")), "key_rejected"),
        (evidence(gpus=0), "no_gpu"),
        (evidence(hcas=0), "no_hca"),
        (evidence(predecessor=True), "predecessor"),
    ],
)
def test_states_of_the_module(seen, state):
    verdict = judge_module(seen)
    assert verdict.state == state
    assert verdict.says().startswith(STATES[state])


def test_a_node_without_gpu_tells_what_else_is_wrong():
    verdict = judge_module(evidence(gpus=0, hcas=0, module=modinfo("nvidia"), stack_has_interface=False))
    assert verdict.state == "no_gpu"
    assert "has no peer memory interface" in verdict.says()


def test_each_state_has_advice():
    assert set(STATES) - set(ADVICE) == {"ready"}


def test_the_file_has_another_name_on_debian():
    module = modinfo(file="nvidia-current-open-peermem")
    assert module._replace(internal_name="nvidia_peermem").name == "nvidia_peermem"
    assert module.name == "nvidia_current_open_peermem"
    assert built_with_interface(module) and not built_with_interface(modinfo("nvidia_current_open"))
    assert built_with_interface(modinfo("ib_uverbs,nvidia"))


@pytest.mark.parametrize(
    ("said", "log", "state"),
    [
        ("could not insert 'nvidia_peermem': Key was rejected by service", "", "key_rejected"),
        ("could not insert 'nvidia_peermem': Required key not available", "", "key_rejected"),
        ("could not insert 'nvidia_current_open_peermem': No such device", "", "no_gpu"),
        ("FATAL: Module nvidia-peermem not found in directory /lib/modules/6.1.0-26-amd64", "", "not_built"),
        ("could not insert 'nvidia_peermem': Invalid argument", "", "without_interface"),
        (
            "could not insert 'nvidia_peermem': Invalid argument",
            "nvidia_peermem: nv_mem_client_init -- error while registering traditional client",
            "not_registered",
        ),
        # Mellanox/nv_peer_memory#8 and #84, with the present module's name
        (
            "could not insert 'nvidia_peermem': Invalid argument",
            "nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client\n"
            "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)",
            "another_stack",
        ),
        ("could not insert 'nvidia_peermem': Unknown symbol in module, or unknown parameter", "", "another_stack"),
        ("could not insert 'nvidia_peermem': Exec format error", "", "another_kernel"),
        ("could not insert 'nvidia_peermem': Operation not permitted", "", "refused"),
        ("no answer within 180 s", "", "unknown"),
    ],
)
def test_what_modprobe_says(said, log, state):
    assert explain_load_failure(f"modprobe: ERROR: {said}", log).state == state


def test_bug_042_noise_is_no_reason():
    noise = "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing\n"
    assert explain_load_failure("modprobe: ERROR: could not insert 'x': Key was rejected by service", noise * 3) == (
        "key_rejected",
        "",
    )


def test_checksums_and_exports():
    assert crc_of_register("0x1a2b3c4d\tib_register_peer_memory_client\n0x00000002\tib_other\n") == "0x1a2b3c4d"
    symvers = "0x0000beef\tib_register_peer_memory_client\tdrivers/infiniband/core/ib_core\tEXPORT_SYMBOL\t\n"
    assert crc_of_register(symvers) == "0x0000beef"
    assert crc_of_register("0x1\tib_unregister_peer_memory_client\n") is None
    assert exports_register("alias symbol:ib_register_peer_memory_client ib_core\n") == "ib_core"
    assert exports_register("alias symbol:ib_register_client ib_core\n") is None
    assert parse_clients(["nv_mem_nc", "nv_mem", "other"]) == ("nv_mem", "nv_mem_nc")
    assert parse_clients(None) is None


@pytest.mark.parametrize(
    ("release", "kind", "library", "gpus", "hcas", "state"),
    [
        ("6.1.0-26-amd64", "open", True, 8, 8, "ready"),
        ("5.12.0", "open", True, 8, 8, "ready"),
        ("5.11.22", "open", True, 8, 8, "kernel_too_old"),
        ("6.1.0", "proprietary", True, 8, 8, "closed_module"),
        ("6.1.0", None, True, 8, 8, "driver_not_loaded"),
        ("6.1.0", "open", False, 8, 8, "library_without_dmabuf"),
        ("6.1.0", "open", None, 8, 8, "library_without_dmabuf"),
        ("6.1.0", None, True, 0, 8, "no_gpu"),
        ("6.1.0", "open", True, 8, 0, "no_hca"),
        ("custom", "open", True, 8, 8, "unknown"),
    ],
)
def test_states_of_dma_buf(release, kind, library, gpus, hcas, state):
    assert judge_dma_buf(release, kind, library, gpus, hcas).state == state


def test_kernel_version():
    assert kernel_version("6.1.0-26-amd64") == (6, 1)
    assert kernel_version("5.9") < (5, 12) < kernel_version("5.15.0-1-generic")
