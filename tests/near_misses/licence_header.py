from near_misses.near import Near

NEAR = Near(
    looks="a header of another project's licence",
    head=("# Copyright (c) the authors. Licensed under the Apache License, Version 2.0. Written for this op.\n"),
)
