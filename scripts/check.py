#!/usr/bin/env python3
"""Format and lint: clang-format (dry run) on every source, clang-tidy on every .cc of the build.

usage: scripts/check.py BUILD_DIR [file ...]

clang-tidy is run on a file only when it, a header of this project that it includes (directly or not), .clang-tidy or its
compile command changed since it last passed; what passed is remembered in BUILD_DIR/check.json.
"""
import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FORMAT, TIDY = "clang-format-14", "clang-tidy-14"
INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.M)


def sources():
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "*.cc", "*.h"], capture_output=True, text=True, check=True)
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).exists()]


def closure(path, seen):
    """All project files that `path` includes, itself too."""
    if path in seen:
        return seen
    seen[path] = path.read_bytes()
    for name in INCLUDE.findall(seen[path]):
        for base in (path.parent, ROOT / "src", ROOT / "include", ROOT / "tests", ROOT / "bench"):
            found = (base / name.decode()).resolve()
            if found.is_file():
                closure(found, seen)
                break
    return seen


def key(path, command):
    digest = hashlib.sha256((ROOT / ".clang-tidy").read_bytes() + command.encode())
    for name, content in sorted(closure(path, {}).items()):
        digest.update(str(name.relative_to(ROOT) if name.is_relative_to(ROOT) else name).encode() + content)
    return digest.hexdigest()


def main():
    build = Path(sys.argv[1]).resolve()
    only = {Path(name).resolve() for name in sys.argv[2:]}
    files = [path for path in sources() if not only or path in only]

    print(f"check: {FORMAT} on {len(files)} files", flush=True)
    failed = subprocess.run([FORMAT, "--dry-run", "--Werror", *map(str, files)]).returncode != 0

    # g++'s own flags mean nothing to clang's front end.
    commands = {Path(entry["file"]).resolve(): entry["command"] for entry in json.loads((build / "compile_commands.json").read_text())}
    remembered = build / "check.json"
    passed = json.loads(remembered.read_text()) if remembered.exists() else {}
    todo = []
    for path in files:
        if path.suffix == ".cc" and path in commands:
            now = key(path, commands[path])
            if passed.get(str(path)) != now:
                todo.append((path, now))
    print(f"check: {TIDY} on {len(todo)} changed files", flush=True)

    def tidy(item):
        run = subprocess.run(
            [TIDY, "-p", str(build), "--quiet", "--extra-arg=-Wno-unknown-warning-option", str(item[0])],
            capture_output=True, text=True)
        return item, run

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for (path, now), run in pool.map(tidy, todo):
            if run.returncode == 0:
                passed[str(path)] = now
                remembered.write_text(json.dumps(passed))
            else:
                failed = True
                print(run.stdout + ("" if run.stdout else run.stderr), flush=True)
    print("check: FAILED" if failed else "check: passed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
