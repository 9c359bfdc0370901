"""Why a GPU runs below its clocks: the bits that NVML tells (nvmlClocksEventReasons) and their words."""

WORDS = {
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


def words(bits: int | None) -> list[str] | None:
    """Those that are set and known; None: unknown."""
    return None if bits is None else [word for bit, word in WORDS.items() if bits & bit]
