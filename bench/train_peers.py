#!/usr/bin/env python3
"""Speed of pith's training against transformers + PEFT (SFT) and TRL (GRPO) on the same machine and model, in one run.

The two are run in turn, A B A B ...; the figures are medians, and the median of the ratios of neighbouring runs. The peers
run in another Python (--python), which has torch, transformers, peft and trl; pith needs none of them.

  bench/train_peers.py --what sft  --pith bin/pith --model smollm2-135m --text some.txt --python /path/to/venv/bin/python
  bench/train_peers.py --what grpo --pith bin/pith --model smollm2-135m --python /path/to/venv/bin/python

sft:  LoRA r = 16 on all linears, rows of about 256 tokens, 4 rows a step; tokens per second.
grpo: one prompt, 8 completions of at most 128 tokens, KL to the start on; seconds per step, and the mean length.
The peers get the float32 weights that `pith export hf --type f32` writes of the model. Exit status 1 when one fails.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

RANK, ROW, ROWS_PER_STEP, COMPLETIONS, LENGTH = 16, 256, 4, 8, 128
STORY = "Write a long story about a lighthouse keeper, his dog, and the winter in which the sea froze."


def run(command, env=None):
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nfailed with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def lora_config():
    import peft

    return peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM")


def sft_worker(args):
    import peft
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.hf)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.hf, torch_dtype=torch.float32)
    model = peft.get_peft_model(model, lora_config())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    rows = [tokenizer(json.loads(line)["text"], truncation=True, max_length=ROW)["input_ids"] for line in open(args.rows)]
    begin, tokens = 0.0, 0
    for step in range(args.steps + 1):
        if step == 1:  # the first one warms up
            begin, tokens = time.monotonic(), 0
        batch = rows[step * ROWS_PER_STEP:(step + 1) * ROWS_PER_STEP]
        width = max(map(len, batch))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in batch])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in batch])
        labels = ids.masked_fill(mask == 0, -100)
        model(input_ids=ids, attention_mask=mask, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        tokens += int(mask.sum())
    print(json.dumps({"tokens_per_second": tokens / (time.monotonic() - begin)}))


def grpo_worker(args):
    import datasets
    import torch
    import transformers
    import trl

    torch.set_num_threads(args.threads)
    marks, lengths = [], []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *_, **__):
            marks.append(time.monotonic())

    def reward(completion_ids, **_):  # any that differs within the group
        lengths.extend(map(len, completion_ids))
        return [float(sum(ids) % 7) for ids in completion_ids]

    config = trl.GRPOConfig(
        output_dir=args.out, per_device_train_batch_size=COMPLETIONS, num_generations=COMPLETIONS, temperature=1.0,
        max_completion_length=LENGTH, beta=0.04, learning_rate=1e-5, max_steps=args.steps + 1, report_to=[],
        save_strategy="no", logging_steps=1000, bf16=False, use_cpu=True, gradient_checkpointing=False, disable_tqdm=True)
    rows = [{"prompt": [{"role": "user", "content": STORY}]}] * 64
    trainer = trl.GRPOTrainer(model=args.hf, reward_funcs=reward, args=config, train_dataset=datasets.Dataset.from_list(rows),
                              peft_config=lora_config(), callbacks=[Clock()])
    trainer.train()
    print(json.dumps({"seconds": statistics.median(b - a for a, b in zip(marks, marks[1:])),
                      "length": statistics.mean(lengths)}))


def pith_sft(args, work):
    out = os.path.join(work, "pith-sft")
    shutil.rmtree(out, ignore_errors=True)
    result = run([args.pith, "train", "sft", "-m", args.model, "--base", args.base, "--dataset", args.rows, "--max-length", str(ROW + 8),
                  "--per-device-train-batch-size", str(ROWS_PER_STEP), "--gradient-accumulation-steps", "1", "--lora-r", str(RANK),
                  "--max-steps", str(args.steps), "--save-steps", "0", "--output-dir", out, "--threads", str(args.threads),
                  "--json"])
    return {"tokens_per_second": result["tokens_per_second"]}


def pith_grpo(args, work):
    out = os.path.join(work, "pith-grpo")
    shutil.rmtree(out, ignore_errors=True)
    problems = os.path.join(work, "problems.jsonl")
    with open(problems, "w", encoding="utf-8") as file:
        for i in range(64):
            file.write(json.dumps({"id": str(i), "problem": STORY, "answer": "none"}) + "\n")
    # Nothing is right here, so every group is equal: they are kept, so that the step computes all that a step can.
    run([args.pith, "train", "grpo", "-m", args.model, "--base", args.base, "--dataset", problems, "--prompt", "plain", "--lora-r", str(RANK),
         "--budgets", str(LENGTH), "--budget-template", "", "--num-generations", str(COMPLETIONS),
         "--per-device-train-batch-size", str(COMPLETIONS), "--gradient-accumulation-steps", "1", "--max-completion-length", str(LENGTH),
         "--temperature", "1", "--beta", "0.04", "--keep-zero-std-groups", "--max-steps", str(args.steps + 1), "--save-steps", "0",
         "--stuck-steps", "0", "--output-dir", out, "--threads", str(args.threads), "--json"])
    rows = [json.loads(line) for line in open(os.path.join(out, "metrics.jsonl"), encoding="utf-8")]
    rows = [row for row in rows if "seconds" in row][1:]
    return {"seconds": statistics.median(row["seconds"] for row in rows),
            "length": statistics.mean(row["mean_length"] for row in rows)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=["sft", "grpo"], required=True)
    parser.add_argument("--pith", default="bin/pith")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--base", default="auto", help="pith's --base")
    parser.add_argument("--text", help="a text file of a few hundred kilobytes, for sft")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    for name in ("--hf", "--rows", "--out"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return sft_worker(args) if args.what == "sft" else grpo_worker(args)

    with tempfile.TemporaryDirectory() as work:
        args.hf = os.path.join(work, "hf")
        args.out = os.path.join(work, "peer")
        run([args.pith, "export", "hf", args.model, args.hf, "--type", "f32", "--no-check", "--json"])
        args.rows = os.path.join(work, "rows.jsonl")
        if args.what == "sft":
            if not args.text:
                sys.exit("--what sft needs --text")
            words = open(args.text, encoding="utf-8").read().split()
            with open(args.rows, "w", encoding="utf-8") as file:
                for i in range((args.steps + 2) * ROWS_PER_STEP):
                    file.write(json.dumps({"text": " ".join(words[i * 170:(i + 1) * 170])}) + "\n")
        environment = dict(os.environ, OMP_NUM_THREADS=str(args.threads), HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
        peer = [args.python, os.path.abspath(__file__), "--worker", "--what", args.what, "--hf", args.hf, "--rows", args.rows,
                "--out", args.out, "--threads", str(args.threads), "--steps", str(args.steps)]
        ours, theirs = [], []
        for _ in range(args.rounds):
            ours.append((pith_sft if args.what == "sft" else pith_grpo)(args, work))
            theirs.append(run(peer, environment))
            print(json.dumps({"pith": ours[-1], "peer": theirs[-1]}), flush=True)
        key = "tokens_per_second" if args.what == "sft" else "seconds"
        ratios = [a[key] / b[key] if args.what == "sft" else b[key] / a[key] for a, b in zip(ours, theirs)]
        print(json.dumps({"what": args.what, "pith": statistics.median(a[key] for a in ours),
                          "peer": statistics.median(b[key] for b in theirs), "ratio": statistics.median(ratios),
                          "range": [min(ratios), max(ratios)]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
