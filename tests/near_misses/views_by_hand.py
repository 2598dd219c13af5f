from near_misses.near import Near

NEAR = Near(
    looks="tensors made by hand from pointers and strides, with an offset",
    edits=(
        (
            "total += lat[token, head, k].to(Float32) * w_uv[head, k, own].to(Float32)",
            "total += row[k].to(Float32) * w_uv[head, k, own].to(Float32)",
        ),
        (
            "        total = Float32(0.0)\n",
            """\
        total = Float32(0.0)
        start = lat.iterator + (token * (self.width // self.value) + head) * self.latent
        row = cute.make_tensor(start, cute.make_layout((self.latent,), stride=(1,)))
""",
        ),
    ),
)
