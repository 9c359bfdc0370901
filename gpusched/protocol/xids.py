"""The Xids (errors of NVIDIA's driver) that matter here: errors of the hardware, or of the program."""

HARDWARE = {
    48: "double-bit ECC error",
    63: "a memory row was remapped",
    64: "a memory row could not be remapped",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "the GPU's system processor does not answer",
}
APPLICATION = {
    13: "the program's kernel failed",
    31: "the program touched memory that is not its own",
    43: "the program's channel was reset",
    45: "the program was stopped on the GPU",
}


def sentence(code: int) -> str:
    """Return text such as `Xid 79: the GPU has fallen off the bus`."""
    description = HARDWARE.get(code) or APPLICATION.get(code)
    return f"Xid {code}: {description}" if description else f"Xid {code}"
