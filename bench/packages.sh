# packages: sourced by bench/quickstart.sh and tests/run.sh: installs with apt what is missing, and only that.

# need PACKAGE…: on Debian and its kin, installs those of them that are not there. Elsewhere, or without the right to install, it
# says what is missing and goes on: configuring then reports what it cannot do without.
need() {
  local missing=() package
  command -v dpkg-query >/dev/null || {
    echo "packages: this is no Debian system; install the equivalents of: $*" >&2
    return 0
  }
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  local sudo=()
  if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null; then sudo=(sudo); else
      echo "packages: missing ${missing[*]}; run as root: apt-get install ${missing[*]}" >&2
      return 0
    fi
  fi
  echo "packages: installing ${missing[*]}"
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive sh -c '
    apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 ||
      { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }' sh "${missing[@]}"
}

build_packages=(gcc libc6-dev cmake ninja-build pkg-config libopenblas-dev libcjson-dev libhwloc-dev zlib1g-dev libutf8proc-dev)
