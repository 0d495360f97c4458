#!/usr/bin/env bash
# Puts a real Apptainer, and the programs it calls, under PREFIX on a Debian release that has no package of it.
# Nothing outside PREFIX is written: Debian's own package of a newer suite, with a private C library and loader beside
# it; squashfuse, fuse-overlayfs, mksquashfs, newuidmap and fakeroot of the machine's own suite.
#
#   install_apptainer.sh PREFIX        then: PREFIX/usr/bin/apptainer --version
#
# As an ordinary user it works too, but newuidmap has to be the system's (package uidmap), for it must be setuid root.
# Where this cannot work it says why and exits 0: the tests that need an Apptainer then skip and name the reason.
set -euo pipefail

prefix=${1:?usage: install_apptainer.sh PREFIX}
suite_of_apptainer=sid suite_of_libc=trixie
packages=(squashfuse libsquashfuse0 libfuse3-3 fuse-overlayfs squashfs-tools liblzo2-2 uidmap libsubid4 fakeroot
          libfakeroot libseccomp2 libsqlite3-0 patchelf)

give_up() { echo "no Apptainer was installed: $1" >&2; exit 0; }

[[ $(uname -s) == Linux ]] || give_up "this is not Linux"
[[ -r /etc/os-release ]] || give_up "there is no /etc/os-release"
. /etc/os-release
[[ ${ID:-} == debian ]] || give_up "this is ${PRETTY_NAME:-not Debian}; install apptainer with its package manager"
for program in apt-get dpkg-deb; do
  command -v $program >/dev/null || give_up "$program is missing"
done
case $(dpkg --print-architecture) in
  amd64) triple=x86_64-linux-gnu loader=ld-linux-x86-64.so.2 ;;
  arm64) triple=aarch64-linux-gnu loader=ld-linux-aarch64.so.1 ;;
  *) give_up "Debian has no apptainer for $(dpkg --print-architecture)" ;;
esac
# The mirror is the machine's own: the one its release comes from.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $VERSION_CODENAME" | head -n 1)
[[ -n $mirror ]] || give_up "apt knows no mirror of $VERSION_CODENAME (run apt-get update)"

mkdir -p "$prefix"
prefix=$(cd "$prefix" && pwd)
if [[ -e $prefix/complete ]] && "$prefix/usr/bin/apptainer" --version; then
  exit 0
fi

work=$(mktemp -d "$prefix/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
key=/usr/share/keyrings/debian-archive-keyring.gpg
for suite in "$VERSION_CODENAME" $suite_of_libc $suite_of_apptainer; do
  echo "deb [signed-by=$key] $mirror $suite main"
done >"$work/sources.list"
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/debs"
cat >"$work/apt.conf" <<CONF
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "$work/lists";
Dir::Cache "$work/cache";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";
CONF
export APT_CONFIG=$work/apt.conf
apt-get -qq update
cd "$work/debs"
apt-get -qq download "apptainer/$suite_of_apptainer" "libc6/$suite_of_libc" "${packages[@]/%//$VERSION_CODENAME}"

libc=$prefix/libc/usr/lib/$triple
own=$prefix/usr/lib/$triple
for deb in *.deb; do
  # Apart from the others: a program of the machine's own suite must never meet the newer libc.
  case $deb in
    libc6_*) dpkg-deb -x "$deb" "$prefix/libc" ;;
    *) dpkg-deb -x "$deb" "$prefix" ;;
  esac
done
# Libraries of this suite may still lie in /lib instead of /usr/lib.
if [[ -d $prefix/lib/$triple ]]; then
  cp -an "$prefix/lib/$triple/." "$own/"
fi

patchelf=$prefix/usr/bin/patchelf
for program in usr/bin/apptainer "usr/lib/$triple/apptainer/bin/starter"; do
  # RPATH, not RUNPATH: the latter is not handed on to the libraries' own libraries.
  "$patchelf" --set-interpreter "$libc/$loader" --force-rpath \
    --set-rpath "$libc:$own:/usr/lib/$triple:/lib/$triple" "$prefix/$program"
done
for program in squashfuse squashfuse_ll fuse-overlayfs mksquashfs unsquashfs newuidmap newgidmap; do
  "$patchelf" --force-rpath --set-rpath "$own" "$prefix/usr/bin/$program"
done
if [[ $EUID == 0 ]]; then
  chmod u+s "$prefix/usr/bin/newuidmap" "$prefix/usr/bin/newgidmap"
else
  rm "$prefix/usr/bin/newuidmap" "$prefix/usr/bin/newgidmap"
fi
cp -f "$prefix/usr/bin/fakeroot-sysv" "$prefix/usr/bin/fakeroot"
sed -i -e "s|^FAKEROOT_PREFIX=.*|FAKEROOT_PREFIX=$prefix/usr|" \
       -e "s|^FAKEROOT_BINDIR=.*|FAKEROOT_BINDIR=$prefix/usr/bin|" \
       -e "s|^FAKED=.*|FAKED=$prefix/usr/bin/faked-sysv|" \
       -e "s|^PATHS=.*|PATHS=$own/libfakeroot|" "$prefix/usr/bin/fakeroot"

mkdir -p "$prefix/usr/etc" "$prefix/usr/var"
cp -a "$prefix/etc/apptainer" "$prefix/usr/etc/"
cp -a "$prefix/var/lib" "$prefix/usr/var/"
ln -sfn ../etc "$prefix/usr/lib/etc" # the starter takes usr/lib for its prefix
ln -sfn ../var "$prefix/usr/lib/var"
conf=$prefix/usr/etc/apptainer/apptainer.conf
# A machine whose root lacks some capabilities (a container, say) refuses 'full'.
sed -i -e 's/^root default capabilities = full/root default capabilities = no/' \
       -e "s|^# binary path = .*|binary path = $prefix/usr/bin:\$PATH:|" "$conf"

"$prefix/usr/bin/apptainer" --version
touch "$prefix/complete"
