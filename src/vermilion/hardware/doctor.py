"""What is wrong with this machine, and the line that fixes it."""

from __future__ import annotations

from vermilion.hardware.checks import LEVELS, Finding, gpu, npu, packages, system
from vermilion.hardware.devices import Machine
from vermilion.hardware.environment import Environment, collect_environment

__all__ = ["Environment", "Finding", "collect_environment", "diagnose"]

CHECKS = (*system.CHECKS, *npu.CHECKS, *gpu.CHECKS, *packages.CHECKS)


def diagnose(machine: Machine, environment: Environment) -> tuple[Finding, ...]:
    """Judge the machine and what surrounds it; the worst findings come first.

    Nothing is looked up here: `detect_machine` and `collect_environment` bring the facts. Where
    there is no NPU or GPU, a finding says so and names the places that were searched.
    """
    findings = [finding for check in CHECKS for finding in check(machine, environment)]
    return tuple(sorted(findings, key=lambda finding: LEVELS.index(finding.level)))
