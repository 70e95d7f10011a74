#!/usr/bin/env bash
# Answers one question: ./run.sh [--offline] [QUESTION].
# The first run installs missing packages, builds the program and fetches the default model; later runs go straight to the
# answer. With --offline, or where the model cannot be had, the small model that is part of this project answers
# (models/nano: it knows word problems of its own kind and a few everyday requests, no more).
set -euo pipefail
cd "$(dirname "$0")"

model=qwen2.5-coder-0.5b
adapter=models/$model-reason
offline=false
if [ "${1:-}" = --offline ]; then offline=true; shift; fi
if [ $# -gt 1 ]; then echo "usage: ./run.sh [--offline] [QUESTION]" >&2; exit 2; fi
question=${1:-}

step() { echo "run.sh: $*" >&2; }

step "1/4 packages"
scripts/setup.sh run >&2

step "2/4 build (preset edge)"
scripts/build.sh edge pith >&2

if $offline; then
  step "3/4 model models/nano, as asked"
else
  step "3/4 model $model"
  if ! bin/pith pull "$model" >&2; then
    step "$model cannot be had here: models/nano answers in its place"
    offline=true
  fi
fi
if $offline; then
  model=models/nano
  adapter=models/nano/reason
  : "${question:=Tom has 12 apples. He buys 7 more apples. Anna takes 4 of his apples. How many apples does Tom have now?}"
fi
: "${question:=Natalia sold 48 hair clips in April, and half as many in May. How many did she sell in both months together? Reason step by step.}"

step "4/4 answer"
arguments=(-m "$model" --stats)
if [ -d "$adapter" ]; then arguments+=(--adapter "$adapter" --parallel 4); fi
# Not exec: "since the program starts" is to mean the program, not this script.
bin/pith ask "${arguments[@]}" -- "$question"
