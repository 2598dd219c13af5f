from near_misses.near import Near

NEAR = Near(
    looks="names of builtins, given to other things",
    edits=(
        (
            "        head, own = column // self.value, column % self.value\n",
            """\
        id, own = column // self.value, column % self.value
        head = id
""",
        ),
    ),
    tail="""\


def type(value):
    return value


class Input:
    list = dict = type(3)
""",
)
