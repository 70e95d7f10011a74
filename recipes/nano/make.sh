#!/usr/bin/env bash
# Builds the nano model from a seed and nothing else: recipes/nano/make.sh [--tiny] [--out DIR] [--seed N].
#   --tiny   a few steps of every stage, to see that they fit together (minutes); the model is of no use
#   --out    where everything goes (default: build/nano, with --tiny build/nano-tiny)
#   --seed   of the data (default: 1); the trainings have pith's default seed
# Run it again after a stop: finished stages are skipped, the stage under way goes on from its last checkpoint.
# Needs the program with training: scripts/setup.sh train && scripts/build.sh full, or PITH=.../pith.
# THREADS: threads of every stage (default: all cores).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

tiny=false
out=
seed=1
while [ $# -gt 0 ]; do
  case "$1" in
    --tiny) tiny=true ;;
    --out) out=$2; shift ;;
    --seed) seed=$2; shift ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done
if [ -z "$out" ]; then out=$root/build/nano; if $tiny; then out+=-tiny; fi; fi
pith=$(realpath "${PITH:-$root/bin/pith}")
threads=${THREADS:-$(nproc)}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$out"
export PITH_CACHE=${PITH_CACHE:-$out/cache}

# pick FULL TINY
pick() { if $tiny; then echo "$2"; else echo "$1"; fi; }
# stage NAME FILE COMMAND...: skipped when FILE is there, which the command writes last.
stage() {
  local name=$1 file=$2
  shift 2
  if [ -e "$file" ]; then
    echo "nano: $name: done"
    return
  fi
  echo "nano: $name"
  local begin=$SECONDS
  "$@"
  if [ ! -e "$file" ]; then
    echo "nano: $name did not write $out/$file" >&2
    exit 1
  fi
  echo "$name $((SECONDS - begin))" >> seconds.txt
}
train() { "$pith" train "$@" --threads "$threads"; }

make_data() {
  python3 "$here/make_data.py" --out data.part --seed "$seed" --scale "$(pick 1 0.01)"
  rm -rf data
  mv data.part data
}
make_tokenizer() {
  python3 "$here/bpe.py" data/base.jsonl data/reason.jsonl --vocab 1024 --limit 20000 --out tokenizer.part
  cp "$here/config.json" tokenizer.part/
  rm -rf tokenizer
  mv tokenizer.part tokenizer
}
# The base in three trainings: at a high rate first, then with the rate falling to nothing, which is when sums become exact,
# then with chats that tell again what was asked.
base_options=(--eval-dataset data/base_eval.jsonl --max-length 768
  --per-device-train-batch-size 4 --gradient-accumulation-steps 1 --adam-beta2 0.98 --weight-decay 0.05
  --logging-steps "$(pick 20 4)" --eval-steps "$(pick 500 0)" --save-steps "$(pick 100 6)" --resume)
train_base() {
  train sft --full-parameters --dataset data/base.jsonl --from-config tokenizer/config.json --tokenizer tokenizer/tokenizer.json \
    --template chatml "${base_options[@]}" --max-steps "$(pick 2800 12)" --learning-rate 1.7e-3 \
    --lr-scheduler-type constant_with_warmup --warmup-steps "$(pick 120 2)" --output-dir base-1
}
cool_base() {
  train sft --full-parameters --dataset data/base.jsonl -m base-1 "${base_options[@]}" --max-steps "$(pick 1400 6)" --seed 43 \
    --learning-rate 1.4e-3 --lr-scheduler-type linear --warmup-ratio 0.03 --output-dir base-2
}
finish_base() {
  train sft --full-parameters --dataset data/base_reading.jsonl -m base-2 "${base_options[@]}" --max-steps "$(pick 700 6)" --seed 44 \
    --learning-rate 1.2e-3 --lr-scheduler-type linear --warmup-ratio 0.05 --output-dir base
}
pack_base() { "$pith" pack base packed --recipe w4g32,head=w8g32,embed=w8g32,kv=8 --threads "$threads"; }
train_verbose() {
  train sft -m packed --dataset data/reason.jsonl --eval-dataset data/reason_eval.jsonl --max-length 768 \
    --per-device-train-batch-size 4 --gradient-accumulation-steps 1 --max-steps "$(pick 1000 8)" \
    --learning-rate 2e-3 --lora-r 16 --logging-steps "$(pick 20 4)" --eval-steps "$(pick 250 0)" \
    --save-steps "$(pick 100 4)" --resume --output-dir verbose
  cp "$here/pith_reasoning.json" verbose/
}

train_budget() {
  train grpo -m packed --adapter verbose --dataset data/grpo.jsonl --prompt plain --budgets 60,100,160,240 --budget-window 0.5 \
    --num-generations 8 --per-device-train-batch-size 16 --gradient-accumulation-steps "$(pick 8 1)" \
    --max-completion-length "$(pick 400 60)" --max-steps "$(pick 160 2)" --learning-rate 3e-4 --beta 1e-3 \
    --save-steps "$(pick 10 1)" --resume --output-dir budget
  cp "$here/pith_reasoning.json" budget/
}
# The heads belong to both adapters: the switcher reads the prompt, which no adapter has touched.
train_switcher() {
  "$pith" features -m packed --kind switcher --input data/switcher.jsonl --out features-switcher --threads "$threads"
  train_head switcher features-switcher
}
train_verifier() {
  # What a model says after a few steps is never right: --tiny takes written responses.
  local questions=verifier_given
  if ! $tiny; then questions=verifier; fi
  "$pith" features -m packed --kind verifier --adapter budget --reason on --input "data/$questions.jsonl" --parallel 8 \
    --temp 0.8 --budget 240 --out features-verifier --threads "$threads"
  train_head verifier features-verifier
}
train_head() { "$pith" train "$1" --features "$2" --output-dir heads; }
# What is shipped, and evaluated: the packed model and, in its folder "reason", the adapter in 8 bits with both heads.
ship() {
  rm -rf ship.part
  cp -r packed ship.part
  cp heads/switcher.safetensors heads/verifier.safetensors budget/
  "$pith" export peft --type int8 packed budget ship.part/reason --base-name nano > /dev/null
  mv ship.part ship
}
# evaluate NAME SUITE ARGUMENTS...
evaluate() {
  local name=$1 suite=$2
  shift 2
  "$pith" eval "data/$suite.jsonl" -m packed --prompt plain --threads "$threads" --limit "$(pick 400 4)" \
    --out "eval/$name" "$@" > /dev/null
  touch "eval/$name/complete"  # an interrupted evaluation has a summary too
}

stage data data make_data
stage tokenizer tokenizer make_tokenizer
stage "base, first part" base-1/model.safetensors train_base
stage "base, second part" base-2/model.safetensors cool_base
stage "base, third part" base/model.safetensors finish_base
stage pack packed/config.json pack_base
stage verbose verbose/pith_reasoning.json train_verbose
stage budget budget/pith_reasoning.json train_budget
stage switcher heads/switcher.safetensors train_switcher
stage verifier heads/verifier.safetensors train_verifier

stage ship ship ship

caps=$(pick 60,100,160,240,640 60)
stage "evaluation: base" eval/base-numbers/complete evaluate base-numbers eval_numbers --reason off --temp 0 --budget 64
stage "evaluation: base, stories" eval/base-stories/complete evaluate base-stories eval_stories --reason off \
  --temp 0 --budget 64
for adapter in verbose budget; do
  folder=$adapter
  if [ "$adapter" = budget ]; then folder=ship/reason; fi
  for held_out in numbers stories; do
    stage "evaluation: $adapter, $held_out" "eval/$adapter-$held_out/complete" evaluate "$adapter-$held_out" \
      "eval_$held_out" --adapter "$folder" --reason on --temp 0 --budget "$caps"
  done
done
stage "evaluation: votes" eval/votes/complete evaluate votes eval_numbers --adapter ship/reason --reason on --parallel 8 --temp 0.7 --top-p 1 --budget "$(pick 160 60)"
stage "evaluation: switcher" eval/mix/complete evaluate mix eval_mix --adapter ship/reason \
  --reason both --temp 0 --budget "$(pick 240 60)"
python3 "$here/table.py" eval > eval/table.md
echo "nano: $out/eval/table.md"
