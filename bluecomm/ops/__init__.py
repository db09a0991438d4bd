"""Operations on tensors, one file each, blocking and nonblocking."""
