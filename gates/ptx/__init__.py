"""A PTX interpreter: runs what the compiler emits on the CPU, with findings."""
