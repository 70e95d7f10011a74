#!/usr/bin/env bash
# Cross-builds pith for aarch64 and runs the tests of the rooms that a phone runs under qemu-user: scripts/aarch64.sh.
# The whole job (route, reasoning, streams, verifier, vote) must give the tokens of x86-64 there: tests/capi with a tiny
# model, and the nano model that the project carries (tests/reason/nano_model_test.cc). Then links
# pith-run without shared libraries (preset aarch64-static), which runs that job too.
# Ends with ctest's summary; exit status 77 (skipped, for ctest) where the cross compiler or its libraries are missing.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=build/aarch64

scripts/setup.sh aarch64
for tool in aarch64-linux-gnu-g++ qemu-aarch64; do
  if ! command -v "$tool" > /dev/null; then
    echo "aarch64: SKIPPED LOUDLY: no $tool" >&2
    exit 77
  fi
done
for package in libhwy libpcre2-8 libutf8proc libzip gmpxx mpfr; do
  if [ ! -f "/usr/lib/aarch64-linux-gnu/pkgconfig/$package.pc" ]; then
    echo "aarch64: SKIPPED LOUDLY: no $package for arm64" >&2
    exit 77
  fi
done

if [ ! -f /usr/lib/aarch64-linux-gnu/libmpc.so ]; then  # it has no pkg-config file
  echo "aarch64: SKIPPED LOUDLY: no libmpc for arm64" >&2
  exit 77
fi

if [ ! -f "$dir/build.ninja" ]; then cmake --preset aarch64; fi
# The program must link; of the tests those of these rooms are built and run.
ninja -C "$dir" pith tests/base/all tests/model/all tests/kernels/all tests/engine/all tests/capi/all nano_model_test
qemu-aarch64 "$dir/bin/pith" --version
failed=0
# An empty cache: under qemu the tests with real models would take hours. They skip themselves.
export PITH_CACHE=$PWD/$dir/no-models
for room in base model kernels engine capi; do
  ctest --test-dir "$dir/tests/$room" --output-on-failure -j "$(nproc)" --timeout 1200 -LE '^(large|speed)$' || failed=1
done
# Of the room above only this: the rest of its tests are policy, which no processor changes.
ctest --test-dir "$dir/tests/reason" --output-on-failure --timeout 1200 -R '^NanoModel.TokensAreTheSame' || failed=1

static=build/aarch64-static
if [ ! -f "$static/build.ninja" ]; then cmake --preset aarch64-static; fi
ninja -C "$static" pith-run tests/capi/all
if readelf -d "$static/bin/pith-run" | grep NEEDED; then
  echo "aarch64: pith-run needs shared libraries" >&2
  failed=1
fi
ctest --test-dir "$static/tests/capi" --output-on-failure -j "$(nproc)" --timeout 1200 || failed=1
exit $failed
