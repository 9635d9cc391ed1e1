"""What the manifests for vLLM say fits together: arguments, configuration, mounts, sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tiering.config_file import load_config
from tiering.quantities import parse_bytes

EXAMPLES = Path(__file__).parents[2] / "examples" / "vllm"
CONFIG = EXAMPLES / "tiering.yaml"


def compose() -> dict[str, Any]:
    return yaml.safe_load((EXAMPLES / "docker-compose.yaml").read_text())


def pod() -> dict[str, Any]:
    stateful_set, service = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())
    assert service["spec"]["selector"] == stateful_set["spec"]["selector"]["matchLabels"]
    (claim,) = stateful_set["spec"]["volumeClaimTemplates"]
    spec: dict[str, Any] = stateful_set["spec"]["template"]["spec"]
    spec["volumes"].append({"name": claim["metadata"]["name"], **claim["spec"]})
    return spec


def extra_config(arguments: list[str]) -> dict[str, Any]:
    """Return what reaches the plugin, of arguments that begin with a model's name."""
    assert not arguments[0].startswith("-")
    (transfer,) = [argument for argument in arguments if argument.startswith("--kv-transfer-config=")]
    connector = json.loads(transfer.partition("=")[2])
    assert (connector["kv_connector"], connector["kv_role"]) == ("OffloadingConnector", "kv_both")
    extra: dict[str, Any] = connector["kv_connector_extra_config"]
    assert (extra["spec_name"], extra["spec_module_path"]) == ("KVTieringSpec", "tiering_vllm")
    return extra


@pytest.mark.parametrize("service", ["engine-0", "engine-1"])
def test_compose(service: str) -> None:
    engine = compose()["services"][service]
    config = load_config(CONFIG, engine["environment"])
    disk, bucket = config.secondary_tier_configs
    mounts = [volume.split(":")[1] for volume in engine["volumes"]]
    assert extra_config(engine["command"])["config_file"] in mounts
    assert [str(root) for root in disk.root_dirs] == [mounts[-1]]
    assert bucket.endpoint_url == engine["environment"]["AWS_ENDPOINT_URL"]
    assert config.cpu_bytes_to_use < 10 * 10**9 == int(engine["shm_size"].removesuffix("gb")) * 10**9


def test_compose_makes_the_bucket_that_the_engines_use() -> None:
    services = compose()["services"]
    bucket = load_config(CONFIG, {}).secondary_tier_configs[1].bucket
    assert f"s3 mb s3://{bucket};" in services["make-bucket"]["entrypoint"][-1]
    (identity,) = json.loads((EXAMPLES / "s3.json").read_text())["identities"]
    environment = services["engine-0"]["environment"]
    assert identity["credentials"] == [
        {"accessKey": environment["AWS_ACCESS_KEY_ID"], "secretKey": environment["AWS_SECRET_ACCESS_KEY"]}
    ]


def test_kubernetes() -> None:
    spec = pod()
    (engine,) = spec["containers"]
    config = load_config(CONFIG, {each["name"]: each["value"] for each in engine["env"]})
    disk, bucket = config.secondary_tier_configs
    mounts = {mount["name"]: mount["mountPath"] for mount in engine["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert mounts.keys() == volumes.keys()
    assert extra_config(engine["args"])["config_file"] == f"{mounts['tiering']}/{CONFIG.name}"
    assert [str(root) for root in disk.root_dirs] == [mounts["disk"]]
    assert bucket.endpoint_url == "http://seaweedfs.storage:8333"
    room = parse_bytes(volumes["rows"]["emptyDir"]["sizeLimit"] + "B")
    assert config.cpu_bytes_to_use < room < parse_bytes(engine["resources"]["limits"]["memory"] + "B")
    assert disk.capacity < parse_bytes(volumes["disk"]["resources"]["requests"]["storage"] + "B")


def test_no_service_of_the_cluster_reaches_the_settings_of_vllm() -> None:
    """A service called vllm would put VLLM_PORT=tcp://... into each container, and vLLM refuses to start with that."""
    assert pod()["enableServiceLinks"] is False
