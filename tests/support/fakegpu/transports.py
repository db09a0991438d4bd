"""Settings that choose how tensors of a device travel between ranks."""

# Operations go through NCCL, or through memory of the host.
NCCL = {"BLUECOMM_DEVICE_TRANSPORT": "nccl"}
STAGED = {"BLUECOMM_DEVICE_TRANSPORT": "staged"}
# NCCL also writes the puts of windows.
NCCL_PUTS = {**NCCL, "BLUECOMM_WINDOWS": "nccl"}
