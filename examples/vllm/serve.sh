#!/usr/bin/env bash
# vLLM on GPUs with tiered KV:  examples/vllm/serve.sh MODEL [arguments of vllm serve]
# For example: serve.sh Qwen/Qwen3-8B --tensor-parallel-size 2
# TIERING_CONFIG names the configuration of the tiers. The variables of AWS give the credentials of the bucket.
set -euo pipefail
config=$(realpath "${TIERING_CONFIG:-$(dirname "$0")/tiering.yaml}")

# A setting of PYTHONHASHSEED is part of every chunk's name: the same in all engines that share a tier, or in none.
exec vllm serve "$@" \
  --prefix-caching-hash-algo sha256_cbor \
  --kv-transfer-config "{
    \"kv_connector\": \"OffloadingConnector\",
    \"kv_role\": \"kv_both\",
    \"kv_connector_extra_config\": {
      \"spec_name\": \"KVTieringSpec\",
      \"spec_module_path\": \"tiering_vllm\",
      \"config_file\": \"$config\"
    }
  }"
