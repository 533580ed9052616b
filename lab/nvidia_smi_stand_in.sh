#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Stands in for nvidia-smi on a node without GPUs: prints what the real program printed in one recorded state.
# `python -m lab fault NODE gpu STATE` installs it with the state's recording.
recording=${GPUFLEET_NVIDIA_SMI_RECORDING:-/opt/gpufleet-lab/nvidia-smi}

play() {
  if [ ! -f "$recording/$1/stdout" ]; then
    echo "nvidia-smi stand-in: $recording has no recording of: nvidia-smi $arguments" >&2
    exit 2
  fi
  cat "$recording/$1/stdout"
  exit "$(cat "$recording/$1/rc" 2>/dev/null || echo 0)"
}

arguments=$*
case "$arguments" in
  "") play nvidia-smi ;;
  "-L") play L ;;
  "-q") play q ;;
  "-q -x") play q-x ;;
  "nvlink -s") play nvlink-s ;;
  "nvlink -e") play nvlink-e ;;
  "topo -m") play topo-m ;;
  "--query-compute-apps=pid,process_name --format=csv,noheader")
    # Recorded with more columns and a header: gpu_uuid, pid, process_name, used_memory.
    status=$(cat "$recording/query-compute-apps/rc" 2>/dev/null || echo 0)
    if [ "$status" != 0 ]; then play query-compute-apps; fi
    sed -n -E '2,$ s/^[^,]*, ([0-9]+), (.*), [^,]*$/\1, \2/p' "$recording/query-compute-apps/stdout"
    ;;
  *) play "no such recording" ;;
esac
