"""Which spec an engine gets: by registered name, or by module path for one of its own (seed, chapter 2)."""

from __future__ import annotations

import importlib
from typing import ClassVar

from tiering.config import TieringConfig
from tiering.engine_config import EngineConfig
from tiering.errors import ConfigError
from tiering.specs.offloading_spec import OffloadingSpec

__all__ = ["OffloadingSpecFactory"]


class OffloadingSpecFactory:
    """The registry of spec classes. A class is imported when it is first asked for, not when it is registered."""

    _registry: ClassVar[dict[str, tuple[str, str]]] = {
        "CPUOffloadingSpec": ("tiering.specs.cpu", "CPUOffloadingSpec"),
        "TieringOffloadingSpec": ("tiering.specs.tiering", "TieringOffloadingSpec"),
    }

    @classmethod
    def register_spec(cls, name: str, module_path: str, class_name: str) -> None:
        """Let ``spec_name: name`` mean a class of a module.

        Raises:
            ValueError: the name is taken.
        """
        if name in cls._registry:
            raise ValueError(f"the spec {name!r} is already registered, as {'.'.join(cls._registry[name])}")
        cls._registry[name] = (module_path, class_name)

    @classmethod
    def create_spec(cls, engine: EngineConfig, config: TieringConfig) -> OffloadingSpec:
        """Make the spec that the configuration names.

        Raises:
            ConfigError: it names none that is registered and gives no ``spec_module_path``; the module cannot be
                imported or has no such class; or the spec refuses its arguments.
        """
        if config.spec_name in cls._registry:
            module_path, class_name = cls._registry[config.spec_name]
        elif config.spec_module_path is not None:
            module_path, class_name = config.spec_module_path, config.spec_name
        else:
            raise ConfigError(
                f"spec_name: {config.spec_name!r}: is not registered; allowed: {', '.join(sorted(cls._registry))}, "
                "or a class of your own with spec_module_path"
            )
        try:
            spec_class = getattr(importlib.import_module(module_path), class_name)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"spec_name: {config.spec_name!r}: cannot be loaded: {error}") from error
        if not (isinstance(spec_class, type) and issubclass(spec_class, OffloadingSpec)):
            raise ConfigError(f"spec_name: {config.spec_name!r}: {module_path} has no OffloadingSpec of that name")
        return spec_class(engine, config)
