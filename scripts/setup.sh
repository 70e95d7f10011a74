#!/usr/bin/env bash
# Installs the Debian packages that pith needs, if some are missing: scripts/setup.sh [run|train|test|aarch64].
#   run      to build and run the program
#   train    also libtorch and OpenBLAS, for the build with training (preset full)
#   test     what `run` wants, and what the tests, the `check` target and the clang build use
#   aarch64  also the libraries for the cross build (adds the foreign architecture arm64; installs nothing natively)
# Nothing is asked of the package registry when nothing is missing. A registry that cannot be reached is said loudly and
# is not an error here: the build then says what it lacks.
set -euo pipefail

run_packages=(
  cmake ninja-build g++ pkg-config python3 python3-pip ca-certificates
  libhwy-dev nlohmann-json3-dev libcli11-dev libpcre2-dev libutf8proc-dev libcurl4-openssl-dev libssl-dev libzip-dev
  libgmp-dev libmpfr-dev libmpc-dev
  libgtest-dev libbenchmark-dev libjs-chart.js
  libonnx-dev libprotobuf-dev
)
# Without an OpenBLAS, Debian's libtorch multiplies with the reference BLAS, about 50 times slower.
train_packages=(libtorch-dev libopenblas0-openmp libopenblas-openmp-dev libgloo-dev)
test_packages=(
  ccache git
  clang-14 clang-tidy-14 clang-format-14 libclang-rt-14-dev
  qemu-user g++-aarch64-linux-gnu
)
aarch64_packages=(
  libc6-dev:arm64 libstdc++6:arm64 libhwy-dev:arm64 libpcre2-dev:arm64 libutf8proc-dev:arm64 libcurl4-openssl-dev:arm64
  libssl-dev:arm64 libzip-dev:arm64 libgmp-dev:arm64 libmpfr-dev:arm64 libmpc-dev:arm64 libgtest-dev:arm64
)

case "${1:-run}" in
  run) wanted=("${run_packages[@]}") ;;
  train) wanted=("${run_packages[@]}" "${train_packages[@]}") ;;
  test) wanted=("${run_packages[@]}" "${test_packages[@]}") ;;
  aarch64) wanted=("${run_packages[@]}" "${test_packages[@]}" "${aarch64_packages[@]}") ;;
  *) echo "usage: scripts/setup.sh [run|train|test|aarch64]" >&2; exit 2 ;;
esac

if ! command -v dpkg-query > /dev/null; then
  echo "setup: not a Debian system; install the equivalents of: ${wanted[*]}" >&2
  exit 0
fi

# One query for all of them; a package that dpkg has never heard of is missing too.
installed=$(dpkg-query -W -f='${Package} ${Package}:${Architecture} ${db:Status-Status}\n' 2> /dev/null |
  awk '$3 == "installed" { print $1; print $2 }')
missing=()
for package in "${wanted[@]}"; do
  grep -qxF -- "$package" <<< "$installed" || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo > /dev/null; then
    echo "setup: MISSING PACKAGES, and neither root nor sudo to install them: ${missing[*]}" >&2
    exit 0
  fi
  as_root=(sudo)
fi

echo "setup: installing ${missing[*]}"
if [ "${1:-run}" = aarch64 ]; then "${as_root[@]}" dpkg --add-architecture arm64; fi
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300)
# --no-remove: an install that would take a package away (a foreign library that clashes with a native one) is refused.
if ! "${apt[@]}" update > /dev/null || ! "${apt[@]}" install --no-install-recommends --no-remove "${missing[@]}"; then
  echo "setup: SKIPPED LOUDLY: the package registry cannot be had here; still missing: ${missing[*]}" >&2
fi
