#!/bin/bash
# chroot.sh SUITE ARCHITECTURE COMMAND... - runs a command on a copy of this tree in another Debian:
# `chroot.sh trixie amd64 make test`.
#
# debootstrap creates the system once, in CHROOTS (default ~/.cache/dtrain/chroots, kept by `make
# clean`). tools/setup.sh installs what the project needs there. Build directory and compiler cache
# are kept between runs. Other architectures run under qemu-user-static; QEMU_CPU selects the
# processor (max: all features of qemu). Requires root, debootstrap and a Debian mirror (MIRROR,
# else debootstrap's default).
set -eu
[ $# -ge 3 ] || { echo "usage: tools/chroot.sh SUITE ARCHITECTURE COMMAND..." >&2; exit 64; }
suite=$1 arch=$2
shift 2
cd "$(dirname "$0")/.."
root=${CHROOTS:-${XDG_CACHE_HOME:-$HOME/.cache}/dtrain/chroots}/$suite-$arch
[ "$(id -u)" = 0 ] || { echo "chroot.sh: chroots need root: sudo make ..." >&2; exit 77; }

needs() { # command package
    command -v "$1" >/dev/null || { apt-get -q update && apt-get -q install -y --no-install-recommends "$2"; } >/dev/null 2>&1 </dev/null ||
        { echo "chroot.sh: $1 is missing (Debian: $2)" >&2; exit 69; }
}

# The kernel runs arm64 programs with qemu. Flag F: qemu is opened now, so the chroot needs no copy
# of it.
register_arm64() {
    local to=/proc/sys/fs/binfmt_misc magic mask
    needs qemu-aarch64-static qemu-user-static
    [ -e $to/register ] || mount -t binfmt_misc binfmt_misc $to
    [ ! -e $to/qemu-aarch64 ] || return 0
    magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
    mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
    echo ":qemu-aarch64:M::$magic:$mask:$(command -v qemu-aarch64-static):OCF" >$to/register
}

make_system() {
    needs debootstrap debootstrap
    echo "chroot.sh: Debian $suite for $arch in $root (minutes)"
    mkdir -p "$root"
    debootstrap --variant=minbase --include=ca-certificates,ccache,make --arch="$arch" "$suite" "$root" ${MIRROR:-} >"$root.log" 2>&1 ||
        { tail -5 "$root.log" >&2; echo "chroot.sh: debootstrap failed: $root.log" >&2; exit 69; }
    touch "$root/.complete"
}

# Copy the current sources; earlier build output is kept.
copy_tree() {
    mkdir -p "$root/src"
    find "$root/src" -mindepth 1 -maxdepth 1 ! -name build ! -name .ccache -exec rm -rf {} +
    git ls-files -z --cached --others --exclude-standard | tar --null -T - --ignore-failed-read -cf - 2>/dev/null | tar -xf - -C "$root/src"
}

# Run in separate namespaces, so that mounts, processes and /dev/shm disappear at the end. The shell
# stays as PID 1, which ignores signals, so that COMMAND is not PID 1.
enter() {
    root=$root unshare --mount --pid --fork --kill-child bash -c '
        set -eu
        mount --make-rprivate /
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        mount --rbind /sys "$root/sys"
        mount -t tmpfs tmpfs "$root/dev/shm"
        chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
            ${QEMU_CPU:+QEMU_CPU=$QEMU_CPU} ${ONLY:+ONLY=$ONLY} TEST_TIMEOUT=${TEST_TIMEOUT:-900} CCACHE_DIR=/src/.ccache \
            OMPI_CC="ccache gcc" OMP_WAIT_POLICY=passive sh -c "cd /src && exec \"\$@\"" sh "$@" || exit
    ' bash "$@"
}

# Compiling under qemu is ten times slower. The host's cross compiler builds the objects against the
# chroot's headers and libraries, and make in the chroot finds them up to date. HDF5's folders are
# passed as system folders, so that dependencies contain no path of the host.
cross_build() {
    local lib=$root/usr/lib/aarch64-linux-gnu
    needs aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
    enter tools/setup.sh test
    cat >"$root.mpicc" <<END
#!/bin/sh
exec $(command -v ccache || true) aarch64-linux-gnu-gcc --sysroot="$root" -isystem "$lib/openmpi/include" -isystem "$root/usr/include/hdf5/openmpi" \
    "\$@" -L"$lib/openmpi/lib" -L"$lib/hdf5/openmpi" -lmpi
END
    chmod +x "$root.mpicc"
    make -C "$root/src" --no-print-directory MPICC="$root.mpicc" HDF5=hdf5-openmpi HDF5_CFLAGS= HDF5_LIBS=-lhdf5 RUNPATH= programs tests-build
}

foreign=
if [ "$arch" = arm64 ] && [ "$(uname -m)" != aarch64 ]; then foreign=yes; fi
[ -z "$foreign" ] || register_arm64
[ -e "$root/.complete" ] || make_system
copy_tree
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
if [ -n "$foreign" ] && [ "$1" = make ]; then cross_build; fi
enter "$@"
