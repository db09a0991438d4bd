"""A GPU that is not there: libcuda and libnccl over the memory of the host."""
