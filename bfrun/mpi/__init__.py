"""``--launcher mpi``: the ranks are started by the site's mpirun."""
