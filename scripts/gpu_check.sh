#!/usr/bin/env bash
# Runs the GPU benchmark and the tests that need a GPU, in at most 10 minutes, on a machine with the packages installed:
#   scripts/gpu_check.sh FOLDER    # writes gpu.md, benchmark.log and tests.log there
# levelfield itself may be missing there: it is imported from src/. Both exit codes are printed.
set -u
mkdir -p "$1" && folder=$(cd "$1" && pwd) && cd "$(dirname "$0")/.." || exit 2
python=${PYTHON:-python3}
export PYTHONPATH=$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}

timeout 360 "$python" benchmarks/gpu.py --output "$folder/gpu.md" >"$folder/benchmark.log" 2>&1
benchmark=$?
cat "$folder/gpu.md"

# Only the files with such tests: others may import packages that are missing here.
files=$(grep -rlE 'mark\.gpu|ON_CUDA|[(,] ?device[,)]' tests --include='test_*.py')
options=(-m gpu -W default --disable-warnings --numprocesses 6 --durations 5)
"$python" -c 'import wandb' 2>/dev/null || options+=(-k 'not neighbours_of_a_fit')
timeout 180 "$python" -m pytest "${options[@]}" $files >"$folder/tests.log" 2>&1
tests=$?
tail -n 30 "$folder/tests.log"
echo "benchmark: exit code $benchmark; tests: exit code $tests (124: stopped after its time)"
exit $((benchmark || tests))
