#!/bin/sh
# Install a second kernel beside linux-image-amd64's: a reboot into another kernel is what finds modules that were
# built for one kernel only. $1 is the root. Chosen by rule, since names change with each update of Debian: the newest
# other kernel of the same series and flavour that has headers too; where the sources offer none, the newest for clouds.
set -eu
root=$1
first=$(ls "$root/lib/modules")
[ "$(echo "$first" | wc -w)" -eq 1 ] || { echo "expected one kernel in the image, found: $first" >&2; exit 1; }
series=$(echo "${first%%-*}" | sed 's/\./\\./g')

# releases PACKAGE-PREFIX FLAVOUR
releases() {
    APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-cache search --names-only "^$1-$series-[0-9]+-$2\$" |
        sed "s/^$1-//; s/ .*//" | grep -vxF "$first" | sort
}

for flavour in amd64 cloud-amd64; do
    images=$(mktemp)
    releases linux-image "$flavour" > "$images"
    second=$(releases linux-headers "$flavour" | comm -12 "$images" - | sort -V | tail -n 1)
    rm "$images"
    if [ -n "$second" ]; then
        APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get --yes -o DPkg::Chroot-Directory="$root" \
            install --no-install-recommends "linux-image-$second"
        # Debian lets /vmlinuz follow the last one that came; what boots by default stays the image's first kernel.
        chroot "$root" linux-update-symlinks install "$first" "/boot/vmlinuz-$first"
        exit 0
    fi
done
echo "the apt sources offer no other $first-like kernel with headers" >&2
exit 1
