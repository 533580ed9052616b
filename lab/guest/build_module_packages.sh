#!/bin/sh
# Put packages with the ZFS and NVIDIA modules for each of the image's kernels into a
# local apt repository of the image: zfs-modules-<kernel> and nvidia-modules-<kernel>.
# Called by configure_root.sh on the machine that builds the image, at its full speed;
# a DKMS build inside an emulated node would take hours. $1 is the root. Installed for
# this and purged again: the two sources for dkms, headers, compiler.
set -eu
root=$1
repository=/opt/gpufleet-lab/apt
work=/opt/gpufleet-lab/build

# shellcheck disable=SC2016  # dpkg-query's own variables, here and below
installed() { chroot "$root" dpkg-query --show --showformat '${Package}:${Architecture}\n' | sort; }
in_root() { APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get --yes -o DPkg::Chroot-Directory="$root" "$@"; }
offered() { APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-cache show --no-all-versions "$1" | sed -n 's/^Version: //p'; }
# shellcheck disable=SC2016
version_of() { chroot "$root" dpkg-query --show --showformat '${Version}' "$1"; }

# The image's kernels: `uname -r` is the builder's, and dkms would take that.
kernels=$(ls "$root/lib/modules")

# Debian builds the open modules from a source package of its own, which security updates
# of the driver leave behind: nvidia-smi 535.309 was offered beside modules 535.261, and
# user space must be of the modules' version. So it comes from where that version is.
nvidia=$(offered nvidia-open-kernel-dkms)
nvidia=${nvidia%-*}
cat > "$root/etc/apt/preferences.d/gpufleet-lab-nvidia" <<END
Explanation: as a site's own mirror, the lab has one version of the driver: that of nvidia-modules-*
Package: src:nvidia-graphics-drivers
Pin: version $nvidia-*
Pin-Priority: 900
END
# What the open modules load into a GPU, 60 MB. It stays: unpacking it costs an emulated node a minute.
in_root install --no-install-recommends firmware-nvidia-gsp

before=$(mktemp)
after=$(mktemp)
trap 'rm -f "$before" "$after"' EXIT
installed > "$before"
# The packages' own scripts would build by themselves, for a kernel of their choice.
mkdir -p "$root/etc/dkms"
touch "$root/etc/dkms/no-autoinstall"
# shellcheck disable=SC2046,SC2086  # lists of names
in_root install --no-install-recommends $(printf 'linux-headers-%s ' $kernels) zfs-dkms nvidia-open-kernel-dkms
rm -r "$root/etc/dkms/no-autoinstall"
# Debian's security kernels (6.1.0-51 and later) give pci_resize_resource a fourth parameter, bars to leave alone, which
# the open modules of 535.261 do not know: they build for none of these kernels. The lab adds it: 0, none.
if grep -q exclude_bars "$root"/usr/src/linux-headers-*-common/include/linux/pci.h; then
    sed -i 's/pci_resize_resource(pci_dev, NV_GPU_BAR1, requested_size)/pci_resize_resource(pci_dev, NV_GPU_BAR1, requested_size, 0)/' \
        "$root"/usr/src/nvidia-current-open-*/nvidia/nv-pci.c
fi
# Nobody looks at debug information, and it costs a quarter of the time.
export KCFLAGS=-g0

# make_packages SOURCE-PACKAGE NAME CONTROL-FIELDS MODULE...: NAME-modules-<kernel> for each kernel, with at least these modules.
make_packages() (
    source_package=$1 name=$2 fields=$3
    shift 3
    version=$(version_of "$source_package")
    configuration=$(chroot "$root" dpkg-query --listfiles "$source_package" | grep '/dkms\.conf$')
    source=$(basename "$(dirname "$configuration")")
    for kernel in $kernels; do
        started=$(date +%s)
        # dkms' own name of the source is <module>-<version>, the version without Debian's revision.
        built=$root/var/lib/dkms/${source%-*}/${source##*-}
        if ! chroot "$root" dkms build -m "${source%-*}" -v "${source##*-}" -k "$kernel" -j "$(nproc)"; then
            tail -n 40 "$built/build/make.log" >&2
            exit 1
        fi
        package=$name-modules-$kernel
        tree=$work/$package
        modules=$tree/lib/modules/$kernel/updates/dkms
        mkdir -p "$root$modules" "$root$tree/DEBIAN"
        cp "$built/$kernel"/*/module/*.ko "$root$modules/" # stripped and signed by dkms
        for module in "$@"; do
            [ -f "$root$modules/$module.ko" ] || { echo "dkms left no $module.ko for $kernel" >&2; exit 1; }
        done
        cat > "$root$tree/DEBIAN/control" <<END
Package: $package
Version: $version
Architecture: amd64
Section: kernel
Priority: optional
Maintainer: gpufleet lab <root@localhost>
$fields
Description: modules of $source_package for Linux $kernel
 Built with dkms when the lab node's image was made.
END
        for script in postinst postrm; do
            printf '#!/bin/sh\nset -e\ndepmod %s\n' "$kernel" > "$root$tree/DEBIAN/$script"
            chmod 0755 "$root$tree/DEBIAN/$script"
        done
        # zstd: what an emulated CPU unpacks fastest.
        chroot "$root" dpkg-deb --build --root-owner-group -Zzstd "$tree" "$repository"
        echo "gpufleet-lab: $package took $(($(date +%s) - started)) s"
    done
)

mkdir -p "$root$repository"
# zfs-modules: the virtual package that zfs-dkms provides too, so that apt, when it
# installs what zfsutils-linux recommends, does not bring in zfs-dkms and a compiler.
make_packages zfs-dkms zfs "Provides: zfs-modules" zfs spl &
zfs=$!
# The same for nvidia-smi; relations as nvidia-open-kernel-dkms has them, without dkms itself.
make_packages nvidia-open-kernel-dkms nvidia "Provides: nvidia-open-kernel-$nvidia
Depends: firmware-nvidia-gsp-$nvidia, nvidia-open-kernel-support--v1" \
    nvidia-current-open nvidia-current-open-uvm nvidia-current-open-peermem || nvidia_failed=1
# Side by side: configure scripts keep one core busy only.
wait $zfs
[ -z "${nvidia_failed:-}" ]
rm -r "$root$work"

# A repository index by hand: the builder may have no dpkg-dev.
(
    cd "$root$repository"
    for deb in *.deb; do
        chroot "$root" dpkg-deb --field "$repository/$deb"
        echo "Filename: ./$deb"
        echo "Size: $(stat -c %s "$deb")"
        echo "SHA256: $(sha256sum "$deb" | cut -d ' ' -f 1)"
        echo
    done > Packages
    cat > Release <<END
Origin: gpufleet-lab
Label: gpufleet-lab
Suite: stable
Date: $(LC_ALL=C date -u '+%a, %d %b %Y %H:%M:%S UTC')
SHA256:
 $(sha256sum Packages | cut -d ' ' -f 1) $(stat -c %s Packages) Packages
END
)

# All that came for this build goes, and nothing else.
installed > "$after"
# shellcheck disable=SC2046
in_root purge $(comm -13 "$before" "$after")
installed > "$after"
cmp "$before" "$after" || { diff "$before" "$after" >&2; exit 1; }
rm -rf "$root/var/lib/dkms" "$root/usr/src"/*
for kernel in $kernels; do
    chroot "$root" depmod "$kernel"
done
