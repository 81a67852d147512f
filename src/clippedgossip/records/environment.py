"""What a result may depend on; nothing that tells whose machine it was."""

import platform
from importlib import metadata

import clippedgossip


def environment(device: str = "cpu") -> dict[str, str]:
    """Versions, kind of machine and the device's name."""
    return {
        "clippedgossip": clippedgossip.__version__,
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": _device_name(device),
    }


def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        import torch

        if torch.cuda.is_available():
            return str(torch.cuda.get_device_name(device))
    return device
