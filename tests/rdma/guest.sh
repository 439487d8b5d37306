# guest.sh: sourced: boots Debian's own kernel with its Soft-RoCE driver (rdma_rxe) under QEMU, and
# runs a job in it: real libibverbs traffic on a machine without a NIC. No root, no KVM and no mount
# is needed: a guest is one process.
#
#   guest_open DIRECTORY          what is missing is a skip (77); DIRECTORY keeps the unpacked
# kernel for the next time
#   guest_programs PROGRAM…       into the guest's /usr/bin, with the libraries they need
#   guest_run NAME JOB SECONDS "KEY=VALUE …" [qemu's arguments]
#                                 JOB/run is run in the guest; its output is in DIRECTORY/NAME.out;
# false unless it exits with 0
#
#   base.cpio   busybox, modules, verbs and its rxe driver, programs      built once
#   job.cpio    the job's files under /job                                appended to it: the kernel
# unpacks both
#
# Emulated: QEMU's TCG with a CPU model of x86-64-v2, which is the quickest and all that the
# programs need. RINGZERO_GUEST_ACCEL=kvm uses KVM where that works.
guest_skip() { echo "skipped: $1"; exit 77; }

guest_open() {
  guest_here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
  guest_directory=$1
  mkdir -p "$guest_directory"
  local program package
  for program in qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio xz:xz-utils ip:iproute2 rdma:iproute2 dpkg-deb:dpkg apt-get:apt; do
    command -v "${program%%:*}" >/dev/null || guest_skip "${program%%:*} is not installed (Debian: apt install ${program##*:})"
  done
  [ "$(uname -m)" = x86_64 ] || guest_skip "the guest is an x86-64 machine, and this host is $(uname -m)"
  ldd "$(command -v busybox)" >/dev/null 2>&1 && guest_skip "busybox is not the static one (Debian: apt install busybox-static)"
  guest_libraries=$(dirname "$(ls /usr/lib/*/libibverbs/librxe-rdmav*.so 2>/dev/null | head -1)" 2>/dev/null)
  [ -e /etc/libibverbs.d/rxe.driver ] && [ -n "$guest_libraries" ] && [ "$guest_libraries" != . ] ||
    guest_skip "libibverbs' rxe driver is not installed (Debian: apt install ibverbs-providers)"
  guest_unpack_kernel
  guest_root=$guest_directory/root
  rm -rf "$guest_root"
  mkdir -p "$guest_root"/{bin,proc,sys,dev,tmp,modules,job,usr/bin,usr/lib,lib64,etc/libibverbs.d,"${guest_libraries#/}",lib/job}
  cp "$(command -v busybox)" "$guest_root/bin/"
  cp "$guest_here/init" "$guest_root/init"
  chmod +x "$guest_root/init"
  cp /etc/libibverbs.d/rxe.driver "$guest_root/etc/libibverbs.d/"
  cp "$guest_libraries"/librxe-rdmav*.so "$guest_root/$guest_libraries/"
  printf 'root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n' >"$guest_root/etc/passwd"
  guest_modules
}

# Debian's kernel package is downloaded, not installed. QEMU boots the ELF image inside its
# compressed one directly, which spares it seconds of decompression at every boot.
guest_unpack_kernel() {
  guest_kernel=$guest_directory/kernel
  [ -s "$guest_kernel/vmlinux" ] && return
  local version offset
  rm -rf "$guest_kernel" && mkdir -p "$guest_kernel/download"
  version=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: *linux-image-/linux-image-/p' | head -1)
  (cd "$guest_kernel/download" && apt-get download -qq "${version:-linux-image-amd64}" >/dev/null 2>&1) ||
    guest_skip "Debian's kernel package ${version:-linux-image-amd64} cannot be downloaded (apt-get update, or no network)"
  dpkg-deb --fsys-tarfile "$guest_kernel"/download/linux-image-*.deb | tar -x -C "$guest_kernel" --wildcards \
    './boot/vmlinuz-*' '*/drivers/virtio/*' '*/drivers/net/virtio_net.ko*' '*/drivers/net/net_failover.ko*' '*/drivers/net/veth.ko*' \
    '*/net/core/failover.ko*' '*/crypto/crc32*' '*/net/ipv*/*udp_tunnel.ko*' '*/drivers/infiniband/core/*' \
    '*/drivers/infiniband/sw/rxe/*' 2>/dev/null
  rm -rf "$guest_kernel/download"
  find "$guest_kernel" -name '*.ko.xz' -exec xz -d {} +
  offset=$(grep -abo $'\xfd7zXZ' "$guest_kernel"/boot/vmlinuz-* | head -1 | cut -d: -f1)
  [ -n "$offset" ] || guest_skip "Debian's kernel $version is not compressed by xz: tests/rdma/guest.sh does not know how to unpack it"
  tail -c +$((offset + 1)) "$guest_kernel"/boot/vmlinuz-* | xz -dc >"$guest_kernel/vmlinux.part" 2>/dev/null # what follows it is no xz: the image is whole
  mv "$guest_kernel/vmlinux.part" "$guest_kernel/vmlinux"
}

# In the order in which they need each other; crc32_generic is not among the driver's dependencies,
# but it asks for it.
guest_modules() {
  local module file
  for module in virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci failover net_failover virtio_net veth \
    crc32_generic udp_tunnel ip6_udp_tunnel ib_core ib_uverbs rdma_rxe; do
    file=$(find "$guest_kernel/lib" -name "$module.ko" | head -1)
    [ -n "$file" ] || continue # built into this kernel, or not there: insmod of those that need it will tell
    cp "$file" "$guest_root/modules/"
    echo "$module" >>"$guest_root/modules/order"
  done
  [ -e "$guest_root/modules/rdma_rxe.ko" ] || guest_skip "Debian's kernel package has no rdma_rxe module"
}

guest_programs() {
  local program library
  cp "$@" "$guest_root/usr/bin/"
  for program in "$@" "$guest_libraries"/librxe-rdmav*.so; do
    [ ! -w "$guest_root/usr/bin/${program##*/}" ] || strip "$guest_root/usr/bin/${program##*/}" 2>/dev/null || true
    for library in $(ldd "$program" | awk '$3 ~ /^\// { print $3 }'); do
      [ -e "$guest_root/lib/job/${library##*/}" ] || cp -L "$library" "$guest_root/lib/job/"
    done
  done
  cp -L /lib64/ld-linux-x86-64.so.2 "$guest_root/lib64/"
  (cd "$guest_root" && find . -mindepth 1 | cpio -o -H newc --quiet) >"$guest_directory/base.cpio"
}

guest_run() {
  local name=$1 job=$2 seconds=$3 words=$4 code=0 stage=$guest_directory/$1.stage
  shift 4
  rm -rf "$stage"
  mkdir -p "$stage"
  cp -r "$job" "$stage/job"
  (cd "$stage" && find job | cpio -o -H newc --quiet) | cat "$guest_directory/base.cpio" - >"$guest_directory/$name.initrd"
  local accel=(-accel tcg,thread=multi -cpu Nehalem)
  [ "${RINGZERO_GUEST_ACCEL:-tcg}" != kvm ] || accel=(-accel kvm -cpu host)
  timeout -k 5 "$seconds" qemu-system-x86_64 "${accel[@]}" -smp 2 -m 768 -machine pc -nodefaults -display none -no-reboot \
    -kernel "$guest_kernel/vmlinux" -initrd "$guest_directory/$name.initrd" \
    -append "console=ttyS0 panic=-1 quiet mitigations=off $words" -serial "file:$guest_directory/$name.console" \
    -serial "file:$guest_directory/$name.out" -device isa-debug-exit,iobase=0x501,iosize=1 "$@" </dev/null 2>"$guest_directory/$name.err" || code=$?
  rm -rf "$stage" "$guest_directory/$name.initrd"
  [ $code = 85 ] && grep -q '^RC=0' "$guest_directory/$name.out"
}
