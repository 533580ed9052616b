#!/bin/sh
# Make a bootable GPT disk from a root file system tarball, without loop devices.
# Runs as root, or as the root of a user namespace. Environment:
#   LAB_TARBALL LAB_WORK (an empty directory) LAB_DISK (output)
#   LAB_DISK_MIB LAB_ESP_MIB LAB_ROOT_UUID LAB_ESP_UUID (XXXX-XXXX)
set -eu
root=$LAB_WORK/root
esp=$LAB_WORK/esp.img
start_mib=1
root_mib=$((start_mib + LAB_ESP_MIB))

mkdir "$root"
tar --extract --numeric-owner --xattrs --xattrs-include='*' --file "$LAB_TARBALL" --directory "$root"
# mmdebstrap leaves the device nodes out (a user namespace may not make them); the kernel fills /dev.
mkdir -p "$root/dev"

truncate --size "${LAB_DISK_MIB}M" "$LAB_DISK"
sfdisk --quiet "$LAB_DISK" <<EOF
label: gpt
start=${start_mib}MiB, size=${LAB_ESP_MIB}MiB, type=U, name=esp
start=${root_mib}MiB, size=$((LAB_DISK_MIB - root_mib - 1))MiB, type=L, name=root
EOF

truncate --size "${LAB_ESP_MIB}M" "$esp"
mkfs.vfat -i "$(printf %s "$LAB_ESP_UUID" | tr -d -)" "$esp" > /dev/null
cat > "$LAB_WORK/grub.cfg" <<EOF
search --no-floppy --fs-uuid --set=root $LAB_ROOT_UUID
set prefix=(\$root)/boot/grub
configfile \$prefix/grub.cfg
EOF
mmd -i "$esp" ::/EFI ::/EFI/BOOT ::/EFI/debian
mcopy -i "$esp" "$root/usr/lib/grub/x86_64-efi/monolithic/grubx64.efi" ::/EFI/BOOT/BOOTX64.EFI
mcopy -i "$esp" "$LAB_WORK/grub.cfg" ::/EFI/debian/grub.cfg
dd if="$esp" of="$LAB_DISK" bs=1M seek=$start_mib conv=notrunc,sparse status=none

mke2fs -q -t ext4 -U "$LAB_ROOT_UUID" -L lab-root -d "$root" \
    -E "offset=$((root_mib * 1024 * 1024))" "$LAB_DISK" "$((LAB_DISK_MIB - root_mib - 1))M"

# For the probe whether KVM really runs a guest (accelerator.py).
cp "$root/vmlinuz" "$LAB_WORK/vmlinuz"
chmod 0644 "$LAB_WORK/vmlinuz"
# shellcheck disable=SC2016  # dpkg-query's own variables
chroot "$root" dpkg-query -W -f '${Package} ${Version}\n' > "$LAB_WORK/packages.list"
rm -rf "$root" "$esp"
