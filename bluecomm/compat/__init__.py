"""Names that exist only because scripts for BlueFog and Horovod use them."""
