#!/bin/sh
# Turn the bare package set into the lab node's root file system. Runs on the
# machine that builds the image, as mmdebstrap's customize hook: $1 is the root.
#
# Nothing here belongs to one node: name, keys and addresses come at first boot
# from node.json (see first_boot.py).
set -eu
root=$1
here=$(dirname "$0")

# --- disk, boot loader -------------------------------------------------------
cat > "$root/etc/fstab" <<EOF
UUID=$LAB_ROOT_UUID / ext4 errors=remount-ro 0 1
UUID=$LAB_ESP_UUID /boot/efi vfat umask=0077,nofail 0 2
EOF
mkdir -p "$root/boot/efi" "$root/boot/grub"
# Only what this virtual machine boots from: Debian's default takes in every driver, which
# costs GRUB 30 s to load and the guest minutes to rebuild when it is emulated.
sed -i 's/^MODULES=.*/MODULES=list/' "$root/etc/initramfs-tools/initramfs.conf"
printf '%s\n' nvme virtio_pci virtio_net ext4 crc32c_generic > "$root/etc/initramfs-tools/modules"
# zstd's level 9, the default, takes an emulated node 16 s for 6 MB, and a driver's packages have it done three times.
echo COMPRESSLEVEL=1 > "$root/etc/initramfs-tools/conf.d/gpufleet-lab"

# --- kernels and their modules: after the above, so that the initramfs which apt makes is the small one
"$here/add_second_kernel.sh" "$root"
# The initramfs takes fsck in only where fstab names a root file system.
chroot "$root" update-initramfs -u -k all
"$here/build_module_packages.sh" "$root"

# no_timer_check: an emulated CPU that gets no time for 10 ms fails the kernel's test of
# the timer interrupt, and the kernel panics (seen on a loaded machine).
# iommu.passthrough=1: QEMU's NVMe disks have shadow doorbells, which disks of metal have not. Linux 6.1 frees
# that buffer when the last user closes a disk that was pulled, after the IOMMU has forgotten the disk, and
# oopses (seen with ZFS: nvme_dbbuf_dma_free in vdev_disk_close). Untranslated DMA frees it as it was allocated.
# mitigations=off, clocksource=tsc, tsc=reliable: for speed alone, a quarter less time for Python and apt. There is no
# speculation to be guarded in an emulated CPU, and QEMU takes its one big lock for each reading of the HPET, which the
# kernel prefers here; the TSC was within 40 ppm of this machine's clock.
kernel_arguments="console=ttyS0,115200 no_timer_check iommu.passthrough=1 mitigations=off clocksource=tsc tsc=reliable"
cat > "$root/etc/default/grub" <<EOF
GRUB_DEFAULT=0
GRUB_TIMEOUT=1
GRUB_DISTRIBUTOR=Debian
GRUB_CMDLINE_LINUX_DEFAULT=""
GRUB_CMDLINE_LINUX="$kernel_arguments"
GRUB_TERMINAL=serial
GRUB_SERIAL_COMMAND="serial --unit=0 --speed=115200"
GRUB_DISABLE_OS_PROBER=true
EOF
# grub-mkconfig needs the real disk, so the first grub.cfg is written here;
# update-grub in the guest replaces it by its own from /etc/default/grub.
cat > "$root/boot/grub/grub.cfg" <<EOF
set timeout=0
search --no-floppy --fs-uuid --set=root $LAB_ROOT_UUID
linux /vmlinuz root=UUID=$LAB_ROOT_UUID ro $kernel_arguments
initrd /initrd.img
boot
EOF

# --- packages ----------------------------------------------------------------
rm -f "$root"/etc/apt/sources.list.d/*
printf '%s\n' "$LAB_APT_SOURCES" > "$root/etc/apt/sources.list"
echo 'deb [trusted=yes] file:/opt/gpufleet-lab/apt ./' > "$root/etc/apt/sources.list.d/gpufleet-lab.list"
# Translated descriptions are half of what apt-get update fetches and an emulated node sorts.
echo 'Acquire::Languages "none";' > "$root/etc/apt/apt.conf.d/90lab"

# --- network: the first NIC by DHCP, the rest as node.json says ---------------
cat > "$root/etc/systemd/network/10-lab-uplink.network" <<'EOF'
# QEMU user networking. Matched by driver, so that the HCA stand-ins (e1000e)
# are left alone; the network between nodes has a file of its own by MAC.
[Match]
Driver=virtio_net

[Network]
DHCP=ipv4
LinkLocalAddressing=no
IPv6AcceptRA=no
EOF
rm -f "$root/etc/resolv.conf"
echo 'nameserver 10.0.2.3' > "$root/etc/resolv.conf"
echo lab-unconfigured > "$root/etc/hostname"
printf '127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n' > "$root/etc/hosts"

# --- ssh ---------------------------------------------------------------------
# Host keys come from node.json, so that the controller knows them beforehand.
rm -f "$root"/etc/ssh/ssh_host_*
cat > "$root/etc/ssh/sshd_config.d/10-lab.conf" <<'EOF'
PermitRootLogin prohibit-password
PasswordAuthentication no
UseDNS no
HostKey /etc/ssh/ssh_host_ed25519_key
EOF

# --- first boot --------------------------------------------------------------
install -m 0755 "$here/first_boot.py" "$root/usr/local/sbin/gpufleet-lab-first-boot"
install -m 0644 "$here/gpufleet-lab-first-boot.service" "$root/etc/systemd/system/"
echo qemu_fw_cfg > "$root/etc/modules-load.d/gpufleet-lab.conf"
printf 'ipmi_si\nipmi_devintf\n' >> "$root/etc/modules-load.d/gpufleet-lab.conf"
# An empty machine-id: each node makes its own at first boot.
: > "$root/etc/machine-id"
rm -f "$root/var/lib/dbus/machine-id"

# --- speed: Ansible's modules are compiled once, see the file -------------------
packages=$root$(chroot "$root" python3 -c 'import site; print(site.getsitepackages()[0])')
install -D -m 0644 "$here/gpufleet_lab_zip_imports.py" "$packages/gpufleet_lab_zip_imports.py"
echo 'import gpufleet_lab_zip_imports' > "$packages/gpufleet-lab.pth"
chroot "$root" python3 -m compileall -q "${packages#"$root"}"

# --- services ----------------------------------------------------------------
chroot "$root" systemctl enable systemd-networkd.service ssh.service systemd-timesyncd.service \
    gpufleet-lab-first-boot.service
# Timers that would fill an emulated node's two cores in the middle of a test.
chroot "$root" systemctl mask apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer
# What costs an emulated boot seconds and has nothing to do here: a screen that the node
# does not have, NVMe over a network that it does not have.
chroot "$root" systemctl mask getty@tty1.service nvmf-autoconnect.service
chroot "$root" systemctl set-default multi-user.target
chroot "$root" systemctl disable e2scrub_reap.service systemd-networkd-wait-online.service
mkdir -p "$root/var/log/journal"

# Roles must refresh package lists themselves, as on a fresh node.
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin
