"""vLLM's offloading interface is the one that the adapter was written for.

There is a recorded copy per minor version, such as ``interface_0_32.json``; after a look at what has changed, run this
file as a script to write that of the vLLM that is installed.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from tiering_vllm.engine_version import adapter_of

RECORDED = {tuple(path.stem.split("_")[1:]): path for path in sorted(Path(__file__).parent.glob("interface_*_*.json"))}

pytestmark = pytest.mark.vllm

METHODS = ("OffloadingSpec", "OffloadingManager", "OffloadingWorker")
VALUES = (
    "CanonicalKVCacheRef",
    "CanonicalKVCacheTensor",
    "CanonicalKVCaches",
    "GPULoadStoreSpec",
    "Locality",
    "LookupResult",
    "Medium",
    "OffloadPolicy",
    "OffloadingEvent",
    "PrepareStoreOutput",
    "ReqContext",
    "RequestOffloadingContext",
    "ScheduleEndContext",
    "TierFilter",
    "TransferResult",
)
CONFIGURATIONS = ("OffloadingConfig", "OffloadingGroupConfig", "OffloadingParallelConfig", "OffloadingCacheConfig")


def interface() -> dict[str, Any]:
    """Describe all that the adapter relies on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm.v1.kv_offload import base, config
    described: dict[str, Any] = {name: methods(getattr(base, name)) for name in METHODS}
    described |= {name: shape(getattr(base, name)) for name in VALUES}
    return described | {name: shape(getattr(config, name)) for name in CONFIGURATIONS}


def methods(cls: type) -> dict[str, str]:
    """Return the signatures of a class; those that must be implemented are marked."""
    abstract = cls.__abstractmethods__  # type: ignore[attr-defined]
    return {
        name: ("abstract " if name in abstract else "") + str(inspect.signature(member))
        for name, member in sorted(inspect.getmembers(cls, inspect.isroutine))
        if name == "__init__" or not name.startswith("_")
    }


def shape(cls: type) -> list[str] | str:
    """Return the members of an enumeration, the fields of a dataclass, or how to make one."""
    if issubclass(cls, enum.Enum):
        return [member.name for member in cls]
    if dataclasses.is_dataclass(cls):
        return [f"{field.name}: {field.type}" for field in dataclasses.fields(cls)]
    return str(inspect.signature(cls))


def installed_version() -> tuple[str, ...]:
    """Return the major and minor version of the vLLM that is installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm.version import __version__
    return tuple(__version__.split(".")[:2])


def test_the_interface_is_the_recorded_one() -> None:
    pytest.importorskip("vllm.version", reason="vLLM is not installed here")
    assert interface() == json.loads(RECORDED[installed_version()].read_text())


def test_each_supported_version_is_recorded() -> None:
    assert {adapter_of(".".join(version)) for version in RECORDED} == {"v030"}
    assert list(RECORDED) == [("0", "30"), ("0", "31"), ("0", "32")]


@pytest.mark.parametrize("path", RECORDED.values(), ids=[".".join(version) for version in RECORDED])
def test_the_recorded_interface_is_complete(path: Path) -> None:
    recorded = json.loads(path.read_text())
    assert sorted(recorded) == sorted([*METHODS, *VALUES, *CONFIGURATIONS])
    assert recorded["OffloadingManager"]["lookup"].startswith("abstract (self, key")


if __name__ == "__main__":
    written = Path(__file__).with_name(f"interface_{'_'.join(installed_version())}.json")
    written.write_text(json.dumps(interface(), indent=1, sort_keys=True) + "\n")
