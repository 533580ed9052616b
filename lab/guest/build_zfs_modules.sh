#!/bin/sh
# Put a package with the ZFS modules for the image's kernel into a local apt
# repository of the image. Called by configure_root.sh on the machine that builds the
# image, at its full speed; a DKMS build inside an emulated node would take hours.
# $1 is the root. Installed for this and purged again: zfs-dkms, headers, compiler.
set -eu
root=$1
repository=/opt/gpufleet-lab/apt

# shellcheck disable=SC2016  # dpkg-query's own variables, here and below
installed() { chroot "$root" dpkg-query --show --showformat '${Package}:${Architecture}\n' | sort; }
in_root() { APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get --yes -o DPkg::Chroot-Directory="$root" "$@"; }

# The image's kernel: `uname -r` is the builder's, and dkms would take that.
kernel=$(ls "$root/lib/modules")
[ "$(echo "$kernel" | wc -w)" -eq 1 ] || { echo "expected one kernel in the image, found: $kernel" >&2; exit 1; }

before=$(mktemp)
after=$(mktemp)
trap 'rm -f "$before" "$after"' EXIT
installed > "$before"
# The package's own script would build by itself, for a kernel of its choice.
mkdir -p "$root/etc/dkms"
touch "$root/etc/dkms/no-autoinstall"
in_root install --no-install-recommends "linux-headers-$kernel" zfs-dkms
# shellcheck disable=SC2016
version=$(chroot "$root" dpkg-query --show --showformat '${Version}' zfs-dkms)
source=$(basename "$(ls -d "$root"/usr/src/zfs-*)")
rm -r "$root/etc/dkms/no-autoinstall"
if ! chroot "$root" dkms install --force -m zfs -v "${source#zfs-}" -k "$kernel" -j "$(nproc)"; then
    tail -n 40 "$root/var/lib/dkms/zfs/${source#zfs-}/build/make.log" >&2
    exit 1
fi

package=zfs-modules-$kernel
tree=$root/opt/gpufleet-lab/$package
modules=$tree/lib/modules/$kernel/updates/dkms
mkdir -p "$modules" "$tree/DEBIAN" "$root$repository"
cp "$root/lib/modules/$kernel/updates/dkms"/*.ko "$modules/"
for module in zfs spl; do
    [ -f "$modules/$module.ko" ] || { echo "dkms left no $module.ko" >&2; exit 1; }
done
chroot "$root" sh -c "strip --strip-debug /opt/gpufleet-lab/$package/lib/modules/$kernel/updates/dkms/*.ko"
# zfs-modules: the virtual package that zfs-dkms provides too, so that apt, when it
# installs what zfsutils-linux recommends, does not bring in zfs-dkms and a compiler.
cat > "$tree/DEBIAN/control" <<END
Package: $package
Version: $version
Architecture: amd64
Section: kernel
Priority: optional
Maintainer: gpufleet lab <root@localhost>
Provides: zfs-modules
Description: ZFS modules for Linux $kernel
 Built from zfs-dkms when the lab node's image was made.
END
for script in postinst postrm; do
    printf '#!/bin/sh\nset -e\ndepmod %s\n' "$kernel" > "$tree/DEBIAN/$script"
    chmod 0755 "$tree/DEBIAN/$script"
done
# zstd: what an emulated CPU unpacks fastest.
chroot "$root" dpkg-deb --build --root-owner-group -Zzstd "/opt/gpufleet-lab/$package" "$repository"
rm -r "$tree"

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
# shellcheck disable=SC2046  # a list of package names
in_root purge $(comm -13 "$before" "$after")
installed > "$after"
cmp "$before" "$after" || { diff "$before" "$after" >&2; exit 1; }
rm -rf "$root/var/lib/dkms" "$root/usr/src"/zfs-* "$root/lib/modules/$kernel/updates"
chroot "$root" depmod "$kernel"
