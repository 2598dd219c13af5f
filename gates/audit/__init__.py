"""What is in an artefact and what it launches, before anything of it is loaded on a GPU.

`object` reads the relocatable object, `cubin` the machine code inside, `recorder` the launches, `limits` joins them.
"""
