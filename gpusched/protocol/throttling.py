"""The reasons for which a GPU runs below its clocks: the bits of NVML (nvmlClocksEventReasons) and their names."""

NAMES = {
    0x001: "idle",
    0x002: "application_clocks",
    0x004: "power_cap",
    0x008: "hardware_slowdown",
    0x010: "sync_boost",
    0x020: "software_thermal",
    0x040: "hardware_thermal",
    0x080: "power_brake",
    0x100: "display_clocks",
}


def reason_names(bits: int | None) -> list[str] | None:
    """Return the names of the known bits that are set; None: unknown."""
    return None if bits is None else [word for bit, word in NAMES.items() if bits & bit]
