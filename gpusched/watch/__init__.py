"""`gpusched watch`: rules on the user's side that reserve GPUs when a log, files, a process, a command or a Slurm queue
show that they will be needed. It needs no server library."""
