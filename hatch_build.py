"""Compiles the kernel while a wheel is built; an editable install compiles it in place."""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def _load_build(root: str) -> Any:
    """`caffnet._kernel.build`, by its path: the package itself is not installed yet."""
    path = Path(root) / "src" / "caffnet" / "_kernel" / "build.py"
    spec = importlib.util.spec_from_file_location("caffnet_kernel_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class KernelBuildHook(BuildHookInterface):
    """Puts the compiled kernel into the wheel, which then is for one platform and every Python 3."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Ask for a compiler where the system has none, and for one that knows other platforms."""
        return [] if _load_build(self.root).find_compiler() and not os.environ.get("CAFFNET_WHEEL") else ["ziglang"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and mark the wheel."""
        if self.target_name != "wheel":
            return
        module = _load_build(self.root)
        build_data["pure_python"] = False
        if wheel := os.environ.get("CAFFNET_WHEEL"):  # for another platform (make wheels)
            library = module.build_wheel_library(wheel, Path(self.root) / "build" / "wheels" / wheel)
            build_data["tag"] = f"py3-none-{wheel}"
            build_data["force_include"][str(library)] = f"caffnet/_kernel/{library.name}"
            return
        library = module.build()
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
        build_data["artifacts"].append(f"src/caffnet/_kernel/{library.name}")
