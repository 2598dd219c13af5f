"""What a writer of a kernel of several ranks has to know beside the op's table, from the contract of ranks alone.

    lines(op, problem) -> tuple[str, ...]      sentences; empty for an op of one rank

The order of arguments, symmetric buffers, sentinel, arming again, what must be equal on all ranks, and what the
interpreter of several ranks has no room for. Not covered: formulas (the op's own text), speed.
"""

from kgen.contract.op import Op
from kgen.contract.ranks import AXIS, PAIR_SENTINEL, RankedOp, ranks_of
from kgen.records import Problem

SENT = f"{PAIR_SENTINEL:#010x}"


def order(op: RankedOp, problem: Problem) -> str:
    """Parameters of the host function in call order, in words."""
    tensors = ", ".join(f"`{t.name}`" for t in op.present(problem))
    scalars = "".join(f", `{s.name}`" for s in op.scalars)
    return (
        f"{tensors}; for each symmetric buffer NAME that you declare, in the order declared, two tensors: your own copy"
        f" `NAME` [parities, *shape] and `NAME_peers`, i64 [ranks], the addresses of that buffer on every rank in rank"
        f" order, your own among them{scalars and '; the scalars' + scalars[1:]}; `rank`, i32, from 0 to ranks - 1;"
        " your workspaces; `stream`"
    )


def lines(op: Op, problem: Problem) -> tuple[str, ...]:
    """`problem`: one that is built. Empty for an op of one rank."""
    if not isinstance(op, RankedOp):
        return ()
    return (*_arguments(op, problem), *_mailboxes(), *_rules(op))


def _arguments(op: RankedOp, problem: Problem) -> tuple[str, ...]:
    return (
        f"`{AXIS}` GPUs of one host ({ranks_of(problem)} here; `dims[{AXIS!r}]` is a string, so `int(dims[{AXIS!r}])`)"
        " compute this op together. Each runs the same build of your file on tensors of its own; shapes in the table"
        " are one rank's.",
        f"Parameters of the host function, in this order: {order(op, problem)}.",
        "`symmetric(dims, tokens, arch)`, a function beside `build`, declares memory that every rank has at the same"
        " size and all ranks can reach: a list of (name, dtype, shape, parities, sentinel). `shape` is of one parity, a"
        " whole number of 32-bit words; the same on all ranks.",
    )


def _mailboxes() -> tuple[str, ...]:
    return (
        "A buffer with a sentinel is a mailbox: before the first call every 32-bit word of it holds the sentinel, and"
        f" a word that holds anything else has arrived. So no data may equal it: with {SENT}, the bf16 pair (+0, -0),"
        " senders turn -0 into +0 (other bits stay). With sentinel None the buffer is zeroed once and nothing more.",
        "Call number n uses parity n % parities, at least 2 of them: a peer may be one call ahead. The number of the"
        " call is your own business: count it in a workspace (zeroed once), since a graph replays the same arguments.",
        "Arm again: when a rank has returned from a call, every parity of its own mailbox holds the sentinel in every"
        " word. The owner writes it, once it has read what came. The end of a call tells peers nothing, so put a fence"
        " of system scope (`cute.arch.fence_acq_rel_sys()`) between arming and the sends of the next call.",
        'Stores to peers and the loads that wait for them need system scope: `sem="relaxed", scope="sys"`, or inline'
        " PTX `st.relaxed.sys` and `ld.relaxed.sys` for 16 bytes. Weak accesses and those of scope gpu are races.",
        "Blocks may wait for blocks of peers with the same number; those of one rank that wait for one another must all"
        " fit on the GPU. Bound each wait by time (some seconds): a lost peer must not hang the others.",
    )


def _rules(op: RankedOp) -> tuple[str, ...]:
    same = " and ".join(f"`{name}`" for name in op.same)
    equal = f"{same} must be bit for bit the same on all ranks, and" if same else "Outputs must be bit for bit the same"
    return (
        f"{equal} in two runs on the same inputs. Sum in float32 in rank order 0, 1, ... on every rank, your own part"
        " at its own place, and round once.",
        "Without GPUs all ranks run side by side in the interpreter, several calls apart, in drawn orders. It knows one"
        " kernel a call, the same grid on all ranks; no clusters, mbarriers, bulk copies, wgmma, dependent launches"
        " (`use_pdl`) or multicast: those end as a skip, which is no pass.",
    )
