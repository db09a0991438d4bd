"""The fake GPU: libcuda and libnccl over the memory of the host."""
