#!/usr/bin/env bash
# Builds the fuzz targets with libFuzzer and the address and undefined-behaviour sanitizers, and runs each of them:
# scripts/fuzz.sh [SECONDS of each, default 10] [names, such as gguf; default all]. Inputs that broke something are left in
# build/fuzz/found/NAME. Exit status 77 (skipped, for ctest) where clang 14 or its runtime is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-10}
shift || true
dir=build/fuzz

if ! command -v clang++-14 > /dev/null || ! ls /usr/lib/llvm-14/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a > /dev/null 2>&1; then
  echo "fuzz: SKIPPED LOUDLY: no clang++-14 with libFuzzer (packages clang-14 and libclang-rt-14-dev)" >&2
  exit 77
fi
if [ ! -f "$dir/build.ninja" ]; then cmake --preset fuzz > /dev/null; fi

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
  for source in fuzz/*_fuzz.cc; do
    name=$(basename "$source" _fuzz.cc)
    names+=("$name")
  done
fi
ninja -C "$dir" "${names[@]/#/fuzz_}"

failed=0
for name in "${names[@]}"; do
  corpus=$dir/corpus/$name
  found=$dir/found/$name
  mkdir -p "$corpus" "$found"
  echo "fuzz: $name for $seconds s"
  if ! "$dir/bin/fuzz_$name" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=3000 -verbosity=0 -print_final_stats=1 \
      -artifact_prefix="$found/" "$corpus" "fuzz/corpus/$name" 2> "$dir/$name.log"; then
    echo "fuzz: $name FAILED" >&2
    tail -60 "$dir/$name.log" >&2
    failed=1
  fi
  grep -E 'number_of_executed_units|average_exec_per_sec' "$dir/$name.log" || true
done
exit $failed
