"""``tidemill doctor``: what this machine is, what runs on it, and what would help."""

from __future__ import annotations

import json as jsonlib
import os
import platform
from typing import Any

from tidemill.cli.options import DebugOption, JsonOption

__all__ = ["doctor", "examine", "suggestions"]


def doctor(
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
) -> None:
    """Show the machine, the kernels it gets, its measured speed, and what to change. Takes about a second."""
    found = examine()
    if json:
        print(jsonlib.dumps(found))
        return
    for name, value in found.items():
        if name != "suggestions":
            print(f"{name:22} {_text(value)}")
    for line in found["suggestions"]:
        print(f"suggestion: {line}")


def examine() -> dict[str, Any]:
    """Everything doctor knows, in plain types."""
    from tidemill import __version__
    from tidemill.cli.measure import multiply_add_gflops, read_gigabytes
    from tidemill.core.machine import read_machine

    machine = read_machine()
    known = (
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512_vnni",
        "avx_vnni",
        "amx_tile",
        "amx_int8",
        "asimd",
        "asimddp",
        "i8mm",
        "sve",
    )
    found: dict[str, Any] = {
        "tidemill": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": machine.cpu_model,
        "architecture": machine.architecture,
        "features": [name for name in known if name in machine.features],
        "threads": machine.cpus,
        "processors_by_affinity": machine.affinity,
        "processors_by_quota": machine.cpu_quota,
        "memory_total": machine.memory_total,
        "memory_available": machine.memory_available,
        "memory_limit": machine.memory_limit,
        **_native(),
        "read_gb_per_second": read_gigabytes(machine.cpus, memory=machine.memory_available),
        "multiply_add_gflops": multiply_add_gflops(),
    }
    return found | {"suggestions": suggestions(found)}


def _native() -> dict[str, Any]:
    """Whether the compiled module loads, the kernels it has for this processor, best first, and those it takes."""
    try:
        from tidemill.executors.native._native import refused_isas, supported_isas
    except ImportError as error:
        return {"native_module": False, "native_error": str(error), "isas": [], "isas_refused": {}, "isa": None}
    isas = supported_isas()
    asked = os.environ.get("TIDEMILL_ISA", "auto")
    return {
        "native_module": True,
        "native_error": None,
        "isas": isas,
        "isas_refused": refused_isas(),
        "isa": isas[0] if asked == "auto" else asked,
    }


def suggestions(found: dict[str, Any]) -> list[str]:
    """What would make this machine work, or work better; empty if nothing comes to mind."""
    lines = []
    if found["native_error"] is not None:
        lines.append("the native module does not load; install a wheel, or a C++20 compiler and install again")
    elif found["isa"] not in found["isas"]:
        lines.append(f"TIDEMILL_ISA is {found['isa']}, which cannot run here; there are: {', '.join(found['isas'])}")
    elif found["isa"] != found["isas"][0]:
        lines.append(f"TIDEMILL_ISA holds the kernels back to {found['isa']}; unset it for {found['isas'][0]}")
    elif found["isa"] == "portable":
        lines.append("only the portable kernels run here: they are several times slower than those for AVX2 or NEON")
    lines += [
        f"the system does not let this process use {isa}, which the processor has: {reason}"
        for isa, reason in found["isas_refused"].items()
    ]
    if found["processors_by_quota"] is not None and found["processors_by_quota"] < found["processors_by_affinity"]:
        lines.append(
            f"the control group's quota allows {found['processors_by_quota']:g} of {found['processors_by_affinity']} "
            "processors; raise it for more speed"
        )
    if found["memory_available"] < 2**30:
        lines.append("less than 1 GiB of memory is available; `tidemill plan MODEL` shows what fits")
    return lines


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "-"
    if isinstance(value, dict):
        return "; ".join(f"{key}: {item}" for key, item in value.items()) or "-"
    if isinstance(value, int) and value >= 2**20:
        return f"{value / 2**30:.1f} GiB"
    return "-" if value is None else str(value)
