# SPDX-License-Identifier: Apache-2.0
"""Tiny packages with the vendors' names and version relations. Where each comes from stands in MANIFEST.tsv."""

from tests.vendor_repository.deb_archive import Package

# Two releases of branch 580 with the fabric manager of the same, and a newer branch in the same repository.
OLD, NEW, NEXT_BRANCH = "580.95.05", "580.105.08", "610.43.02"
# The branch before: its packages carry the branch in their names.
BEFORE = "570.195.03"
# A release whose fabric manager has not been published (yet).
WITHOUT_FABRIC_MANAGER = "580.119.02"
# A release whose kernel modules want a kernel that no node has.
WANTS_A_KERNEL = "580.126.09"
FUTURE_KERNEL = "6.99.1-1-amd64"
# The script of the kernel modules fails while this file exists, as a build by dkms does.
BUILD_FAILS = "/run/vendor-repository-build-fails"

DRIVER = ["nvidia-open", "nvidia-driver-cuda", "nvidia-kernel-open-dkms", "libcuda1", "libnvidia-ml1"]
DRIVER += ["nvidia-persistenced"]


def pinning(version: str) -> Package:
    """The vendor's package that pins one exact version."""
    text = f"Package: {' '.join([*DRIVER, 'nvidia-fabricmanager'])}\nPin: version {version}-*\nPin-Priority: 1000\n"
    return Package(
        f"nvidia-driver-pinning-{version}",
        f"{version}-1",
        {"Provides": "nvidia-driver-pinning", "Conflicts": "nvidia-driver-pinning"},
        # apt skips a name with a dot, unless .pref follows it
        {"/etc/apt/preferences.d/nvidia-driver-pinning": text},
    )


def driver(version: str, kernel: str = "") -> list[Package]:
    """A release of the driver. nvidia-open wants that version or a newer one, so only a pin keeps the branch."""
    full = f"{version}-1"
    modules = {"Conflicts": "nvidia-kernel-dkms", **({"Depends": f"linux-image-{kernel}"} if kernel else {})}
    return [
        pinning(version),
        Package(
            "nvidia-open", full, {"Depends": f"nvidia-driver-cuda (>= {full}), nvidia-kernel-open-dkms (>= {full})"}
        ),
        Package(
            "nvidia-driver-cuda",
            full,
            {
                "Depends": f"libcuda1 (= {full}), nvidia-kernel-open-dkms (= {full}) | nvidia-kernel-dkms (= {full}), "
                f"nvidia-persistenced (= {full})"
            },
            payload=300_000,
        ),
        Package(
            "nvidia-kernel-open-dkms",
            full,
            modules,
            postinst=f'[ ! -e {BUILD_FAILS} ] || {{ echo "Error! Bad return status for module build" >&2; exit 10; }}',
        ),
        Package("libcuda1", full, {"Depends": f"libnvidia-ml1 (= {full})"}),
        Package("libnvidia-ml1", full),
        Package("nvidia-persistenced", full),
    ]


def fabric_manager(version: str) -> Package:
    """The fabric manager under the name that it has in the branch of the version."""
    branch = version.partition(".")[0]
    if int(branch) < 580:
        return Package(
            f"nvidia-fabricmanager-{branch}", f"{version}-1", {"Provides": "nvidia-fabricmanager-for-branch"}
        )
    return Package("nvidia-fabricmanager", f"{version}-1")


def branch_before() -> list[Package]:
    """The driver of a branch whose packages carry it in their names, in the way of the next one."""
    full = f"{BEFORE}-1"
    return [
        Package("nvidia-open-570", full, {"Depends": f"nvidia-driver-570-open (= {full})"}),
        Package("nvidia-driver-570-open", full, {"Depends": f"libnvidia-compute-570 (= {full})"}),
        Package("libnvidia-compute-570", full, {"Conflicts": "libcuda1"}),
        fabric_manager(BEFORE),
    ]


def cuda_repository() -> list[Package]:
    """NVIDIA's CUDA network repository."""
    releases = [OLD, NEW, NEXT_BRANCH]
    packages = [package for version in [*releases, WITHOUT_FABRIC_MANAGER] for package in driver(version)]
    packages += [fabric_manager(version) for version in releases]
    packages += driver(WANTS_A_KERNEL, FUTURE_KERNEL)
    packages.append(Package(f"linux-image-{FUTURE_KERNEL}", "6.99.1-1"))
    return packages + branch_before()


# doca-ofed, its kernel drivers, and its libraries, of two releases
DOCA_RELEASES = [
    ("3.1.0-091513", "25.07.OFED.25.07.0.9.7.1-1", "2507mlnx58-1.2507097"),
    ("3.2.1-044413", "25.10.OFED.25.10.1.7.1.1-1", "2510mlnx58-1.2510171"),
]
DOCA_LIBRARIES = ["rdma-core", "libibverbs1", "ibverbs-providers", "ibverbs-utils", "librdmacm1", "infiniband-diags"]


def doca_repository() -> list[Package]:
    """DOCA's flat repository for DOCA-OFED."""
    packages = []
    for doca, kernel, libraries in DOCA_RELEASES:
        bound = ", ".join(f"{name} (= {libraries})" for name in DOCA_LIBRARIES)
        packages += [Package(name, libraries) for name in DOCA_LIBRARIES]
        packages += [
            Package("mlnx-ofed-kernel-utils", kernel),
            Package("mlnx-ofed-kernel-dkms", kernel, {"Depends": f"mlnx-ofed-kernel-utils (= {kernel})"}),
            Package("ofed-scripts", kernel),
            Package("doca-ofed-userspace", doca, {"Depends": bound}),
            Package(
                "doca-ofed",
                doca,
                {
                    "Depends": f"doca-ofed-userspace (= {doca}), mlnx-ofed-kernel-dkms (= {kernel})"
                    f", ofed-scripts (= {kernel})"
                },
            ),
        ]
    return [*packages, Package("mft", "4.33.0-169"), Package("dkms", "9.9-mlnx")]
