"""Sets the platform of the wheel: Linux with the glibc that the program needs, or a newer one (PEP 600)."""

import os
import platform
import re
import subprocess

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PlatformTag(BuildHookInterface):
    def initialize(self, version, build_data):
        program = os.path.join(self.root, "tidegate")
        symbols = subprocess.run(["objdump", "--dynamic-syms", program], check=True, capture_output=True, text=True).stdout
        needed = max(tuple(map(int, found)) for found in re.findall(r"GLIBC_(\d+)\.(\d+)", symbols))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_{needed[0]}_{needed[1]}_{platform.machine()}"
