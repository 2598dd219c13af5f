"""What is in an artefact and what it launches, before anything of it is loaded on a GPU."""
