"""Programs in MSCCL++'s language whose plans that package emits, too: tests compare the texts."""

from __future__ import annotations

from itertools import permutations

from mscclpp.language.channel import *  # noqa: F403
from mscclpp.language.collectives import *  # noqa: F403
from mscclpp.language.general import *  # noqa: F403
from mscclpp.language.loop import *  # noqa: F403
from mscclpp.language.program import *  # noqa: F403
from mscclpp.language.rank import *  # noqa: F403
from mscclpp.language.utils import *  # noqa: F403

# ruff: noqa: F405

LL = {"protocol": "LL", "use_double_scratch_buffer": True}


def meshes(ranks):
    """A memory channel from each rank to each other, by (from, to)."""
    return {(a, b): MemoryChannel(b, a) for a, b in permutations(range(ranks), 2)}


def skip(a, b):
    """The position of b among the ranks that are not a."""
    return b - (b > a)


def allgather():
    with CollectiveProgram("allgather", AllGather(2, 1, True), 2):
        for me, peer in permutations(range(2), 2):
            ch = MemoryChannel(peer, me)
            ch.signal(0, relaxed=True)
            ch.wait(0, SyncType.after, relaxed=True)
            mine, there = (Rank(r).get_output_buffer()[me : me + 1] for r in (me, peer))
            ch.put(there, mine, tb=0)
            ch.signal(0, SyncType.before)
            ch.wait(0, SyncType.after)
        return JSON()


def allreduce_fused():
    with CollectiveProgram("reduce", AllReduce(2, 2, True), 2) as program:
        ranks = Rank(0), Rank(1)
        ch = MemoryChannel(1, 0), MemoryChannel(0, 1)
        data = [r.get_input_buffer() for r in ranks]
        room = Buffer(0, 4), Buffer(1, 4)
        for me, part in (0, slice(2, 4)), (1, slice(0, 2)):
            ranks[me].copy(room[me][part], data[me][part], tb=0)
            ch[me].signal(0)
            ch[me].wait(0)
        ch[0].reduce(data[0][0:1], [room[1][0:1]], tb=0)
        ch[0].put(data[1][0:1], data[0][0:1], tb=0)
        ch[0].get(room[0][1:2], room[1][1:2], tb=0)
        ranks[0].reduce(data[0][1:2], [room[0][1:2]], tb=0)
        ch[0].put(data[1][1:2], data[0][1:2], tb=0)
        ch[1].reduce(data[1][2:4], [data[0][2:4]], tb=0)
        ranks[1].copy(room[1][2:4], data[1][2:4], tb=0)
        ch[1].put(data[0][2:4], room[1][2:4], tb=0)
        for c in ch:
            c.signal(0)
            c.wait(0)
    return program.to_json()


def allreduce_packet(n=4):
    with CollectiveProgram("allreduce_pkt", AllReduce(n, n, True), n, auto_sync=False, **LL) as program:
        room = [Buffer(r, 2 * (n - 1) * n) for r in range(n)]
        ch = meshes(n)
        for me, peer in ch:
            at = skip(peer, me) * n
            ch[me, peer].put_packets(
                room[peer][at : at + n], Rank(me).get_input_buffer()[peer * n : peer * n + n], skip(me, peer)
            )
        for me in range(n):
            data = Rank(me).get_input_buffer()
            for i in range(n):
                came = [room[me][k * n + i : k * n + i + 1] for k in range(n - 1)]
                mine = data[me * n + i : me * n + i + 1]
                Rank(me).reduce(mine, came, i, packet=True)
                for peer in range(n):
                    if peer != me:
                        at = (n - 1) * n + skip(peer, me) * n + i
                        ch[me, peer].put_packets(room[peer][at : at + 1], mine, i)
            for peer in range(n):
                if peer != me:
                    at = (n - 1) * n + skip(me, peer) * n
                    Rank(me).unpack_packets(data[peer * n : peer * n + n], room[me][at : at + n], peer)
    return program.to_json()


def allgather_packet_forward(n=4):
    with CollectiveProgram("allgather_pkt_rppkt", AllGather(n, 1, True), n, **LL) as program:
        room = [Buffer(r, 2 * n) for r in range(n)]
        for me in range(n):
            rank, slot = Rank(me), room[me][n + me : n + me + 1]
            rank.copy_packets(slot, rank.get_input_buffer()[:], tb=0)
            peers = [(me + k) % n for k in range(1, n)]
            for peer in peers:
                MemoryChannel(peer, me).read_put_packets(room[peer][me : me + 1], slot, tb=0)
            for peer in peers:
                rank.unpack_packets(rank.get_output_buffer()[peer : peer + 1], room[me][peer : peer + 1], tb=0)
    return program.to_json()


def reducescatter_packet_port(node=2):
    n = 2 * node
    with CollectiveProgram("reducescatter_pkt", ReduceScatter(n, 1, True), n, **LL) as program:
        room = [Buffer(r, n) for r in range(n)]
        for me in range(n):
            base, gpu = me // node * node, me % node
            other = (me + node) % n
            rank = Rank(me)
            data = rank.get_input_buffer()

            def chunk(of, at):
                return of[at : at + 1]

            for peer in range(node):
                if peer != gpu:
                    there = room[base + peer]
                    ch = MemoryChannel(base + peer, me)
                    ch.put_packets(chunk(there, gpu), chunk(data, base + peer), tb=0)
                    ch.put_packets(chunk(there, node + skip(peer, gpu)), chunk(data, (base + peer + node) % n), tb=0)
            far = PortChannel(other, me)
            peers = [p for p in range(node) if p != gpu]
            rank.reduce(chunk(data, other), [chunk(room[me], node + skip(gpu, p)) for p in peers], tb=0, packet=True)
            rank.copy_packets(chunk(room[me], gpu), chunk(data, other), tb=0)
            far.read_put_packets(chunk(room[other], n - 1), chunk(room[me], gpu), tb=0)
            came = [chunk(room[me], n - 1)] + [chunk(room[me], p) for p in peers]
            rank.reduce(chunk(data, me), came, tb=0, packet=True)
    return program.to_json()


def allreduce_switch(n=2, instances=2):
    spec = AlgoSpec(
        name="allreduce_nvls",
        collective=AllReduce(n, 1, True),
        nranks_per_node=n,
        world_size=n,
        in_place=True,
        instances=instances,
        protocol="Simple",
        min_message_size=1 << 20,
        max_message_size=48 << 30,
        tags={"nvls": 1},
    )
    return switched(spec).to_json()


def switched(spec):
    """An all-reduce by multicast, of a specification."""
    n = spec.world_size
    with CollectiveProgram.from_spec(spec) as program:
        switch = SwitchChannel(list(range(n)), BufferType.input)
        ch = meshes(n)
        for me in range(n):
            mine = [c for (a, _), c in ch.items() if a == me]
            for c in mine:
                c.signal(0, relaxed=True)
            for c in mine:
                c.wait(0, SyncType.after, relaxed=True)
            chunk, view = Rank(me).get_input_buffer()[me : me + 1], switch.at_rank(me)
            view.reduce(buffer_offset=me, size=1, dst_chunk=chunk, tb=0)
            view.broadcast(src_chunk=chunk, buffer_offset=me, size=1, tb=0)
            for c in mine:
                c.signal(0, SyncType.before, relaxed=True)
            for c in mine:
                c.wait(0, relaxed=True)
    return program


def allgather_switch_packet(n=2):
    with CollectiveProgram(
        "allgather_nvls_zero_copy_pkt",
        AllGather(n, 1, True),
        n,
        auto_sync=False,
        num_threads_per_block=256,
        min_message_size=1024,
        max_message_size=1 << 20,
        **LL,
    ) as program:
        room = [Buffer(r, n) for r in range(n)]
        switch = SwitchChannel(list(range(n)), BufferType.scratch)
        for me in range(n):
            rank, out = Rank(me), Rank(me).get_output_buffer()
            rank.copy_packets(room[me][me : me + 1], out[me : me + 1], tb=0)
            switch.broadcast_packets(me, room[me][me : me + 1], me, 1, 0)
            for i in range(n):
                rank.unpack_packets(out[i : i + 1], room[me][i : i + 1], tb=i)
    return program.to_json()


def allreduce_pipeline_switch(n=2):
    with CollectiveProgram("allreduce_pipeline", AllReduce(n, 1, True), n, reuse_resources=True) as program:
        switch = SwitchChannel([0, 1], BufferType.scratch)
        room = [Buffer(r, n) for r in range(n)]
        for me in range(n):
            rank, view = Rank(me), switch.at_rank(me)
            came, left = (MemoryChannel((me + 1) % n, me) for _ in range(2))
            first, second = (Semaphore(me, 0) for _ in range(2))
            with LoopIterationContext(unit=1 << 20, num_chunks=1):
                for i in range(n):
                    rank.copy(room[me][i : i + 1], rank.get_input_buffer()[i : i + 1], tb=0)
                came.signal(0, SyncType.before)
                came.wait(0, SyncType.after)
                first.release(0)

                first.acquire(1, SyncType.after)
                view.reduce(me, 1, room[me][me : me + 1], 1)
                view.broadcast(room[me][me : me + 1], me, 1, 1)
                left.signal(1, SyncType.before)
                second.release(1)

                second.acquire(2)
                left.wait(2, SyncType.after)
                for i in range(n):
                    rank.copy(rank.get_output_buffer()[i : i + 1], room[me][i : i + 1], tb=2)
    return program.to_json()


def alltoall_pipeline(n=3):
    with CollectiveProgram("alltoall_pipeline", AllToAll(n, 1, True), n, instances=2) as program:
        room = [Buffer(r, n - 1) for r in range(n)]
        done = [[Semaphore(r, 0) for _ in range(n)] for r in range(n)]
        data, ready = {}, {}
        for pair in permutations(range(n), 2):
            data[pair], ready[pair] = MemoryChannel(pair[1], pair[0]), MemoryChannel(pair[1], pair[0])
        for (me, peer), ch in ready.items():
            ch.signal(skip(me, peer), relaxed=True)
            ch.wait(skip(me, peer), SyncType.after, relaxed=True)
        with LoopIterationContext(1 << 19, 1):
            for (me, peer), ch in data.items():
                tb, at = skip(me, peer), skip(peer, me)
                ch.put(room[peer][at : at + 1], Rank(me).get_input_buffer()[peer : peer + 1], tb)
                ch.signal(tb, SyncType.before)
                done[me][tb].release(tb)

                copier = n - 1 + tb
                done[me][tb].acquire(copier)
                ch.wait(copier, SyncType.after)
                Rank(me).copy(Rank(me).get_input_buffer()[peer : peer + 1], room[me][tb : tb + 1], copier)
    return program.to_json()


def allgather_groups_port(nodes=2, node=2, size=2):
    n = nodes * node
    with CollectiveProgram("allgather_tbg", AllGather(n, 1, False), n) as program:
        room = [Buffer(r, n) for r in range(n)]
        groups = [ThreadBlockGroup(range(1 + g * size, 1 + (g + 1) * size)) for g in range(node)]
        near = {
            (me, peer): [MemoryChannel(peer, me) for _ in range(size)]
            for me in range(n)
            for peer in range(me // node * node, me // node * node + node)
            if peer != me
        }
        far = [PortChannel((me + node) % n, me) for me in range(n)]
        ends = {(me, peer): groups[skip(me % node, peer % node)] for me, peer in near}
        for order in ("signal", "wait"):
            sync = SyncType.none if order == "signal" else SyncType.after
            for pair, channels in near.items():
                for tb, ch in zip(ends[pair].tb_list, channels, strict=True):
                    getattr(ch, order)(tb=tb, data_sync=sync, relaxed=True)
            for ch in far:
                getattr(ch, order)(tb=0, data_sync=sync)
        for step in range(nodes):
            for me in range(n):
                rank = Rank(me)
                if step:
                    far[me].wait(tb=0)
                    rank.barrier(list(range(1 + node * size)))
                if step < nodes - 1:
                    there = room[(me + node) % n]
                    far[me].put_with_signal_and_flush(there[me : me + 1], rank.get_input_buffer()[0:1], tb=0)

            def source(of, at, step=step):
                return room[of][at : at + 1] if step else Rank(of).get_input_buffer()[0:1]

            for (me, peer), channels in near.items():
                group = ends[me, peer]
                mine, theirs = (me - node * step) % n, (peer - node * step) % n
                channels[0].put(room[peer][mine : mine + 1], source(me, mine), tb_group=group)
                for tb, ch in zip(group.tb_list, channels, strict=True):
                    ch.signal(tb, SyncType.before)
                    ch.wait(tb, SyncType.after)
                out = Rank(me).get_output_buffer()
                Rank(me).copy(out[theirs : theirs + 1], room[me][theirs : theirs + 1], tb_group=group)
            for me in range(n):
                mine = (me - node * step) % n
                out = Rank(me).get_output_buffer()[mine : mine + 1]
                Rank(me).copy(out, source(me, mine), tb_group=groups[node - 1])
    return program.to_json()


def allreduce_hierarchical(nodes=2, node=2, size=2):
    n = nodes * node
    spec = AlgoSpec(
        name="allreduce_multi_nodes",
        collective=AllReduce(n, 1, True),
        nranks_per_node=node,
        world_size=n,
        in_place=True,
        instances=1,
        auto_sync=False,
        reuse_resources=True,
        min_message_size=1 << 10,
        max_message_size=2 << 20,
        **LL,
    )
    with CollectiveProgram.from_spec(spec) as program:
        blocks = 1 + (node - 1) * size
        groups = [ThreadBlockGroup(range(1 + g * size, 1 + (g + 1) * size)) for g in range(node - 1)]
        everyone = ThreadBlockGroup(range(1, blocks))
        room = [Buffer(r, 2 * n + nodes * nodes) for r in range(n)]
        near, far = {}, {}
        for me in range(n):
            for peer in range(n):
                if peer != me and peer // node == me // node:
                    near[me, peer] = MemoryChannel(peer, me)
            for peer in range(n):
                if peer != me and peer % node == me % node:
                    far[me, peer] = PortChannel(peer, me)

        def part(of, base, i):
            return of[base + i * nodes : base + (i + 1) * nodes]

        for me in range(n):
            rank, gpu, base = Rank(me), me % node, me // node
            data = rank.get_input_buffer()
            mine = part(data, 0, gpu)
            peers = [p for a, p in near if a == me]
            for p in peers:
                group = groups[skip(gpu, p % node)]
                near[me, p].put_packets(part(room[p], 0, gpu), part(data, 0, p % node), tb_group=group)
            rank.reduce(mine, [part(room[me], 0, p % node) for p in peers], tb_group=everyone, packet=True)
            rank.copy_packets(part(room[me], 0, gpu), mine, tb_group=everyone)
            rank.barrier(list(range(blocks)))
            twins = [p for a, p in far if a == me]
            for p in twins:
                far[me, p].put_packets(part(room[p], n, base), part(room[me], 0, gpu), tb=0)
            rank.reduce(mine, [part(room[me], n, p // node) for p in twins], tb_group=everyone, packet=True)
            rank.copy_packets(part(room[me], n, base), mine, tb_group=everyone)
            last = n + nodes * nodes
            for p in peers:
                near[me, p].read_put_packets(
                    part(room[p], last, gpu), part(room[me], n, base), tb_group=groups[skip(gpu, p % node)]
                )
            for p in peers:
                rank.unpack_packets(
                    part(data, 0, p % node), part(room[me], last, p % node), tb_group=groups[skip(gpu, p % node)]
                )
    return program.to_json()


def sendrecv_port(n=4, mask=1, instances=4):
    with CollectiveProgram("send_recv", SendRecv(n, 1, False), n, instances=instances) as program:
        hop = mask + 1
        to, fro = {}, {}
        for me in range(n):
            after, before = (me + hop) % n, (me - hop) % n
            # Channels pair in the order in which they are made, so of two that lead to one peer the higher rank makes
            # the other one first.
            if after == before and me > before:
                fro[me] = PortChannel(before, me)
                to[me] = PortChannel(after, me)
            else:
                to[me] = PortChannel(after, me)
                fro[me] = PortChannel(before, me)
        for me in range(n):
            fro[me].signal(0, SyncType.none)
            to[me].wait(0, SyncType.after)
            to[me].put_with_signal(Rank(to[me].dst_rank).get_output_buffer()[:], Rank(me).get_input_buffer()[:], 0)
            fro[me].wait(0, SyncType.none)
    return program.to_json()


# Each program by the name of the plan that it makes.
PROGRAMS = {
    f.__name__: f
    for f in (
        allgather,
        allgather_groups_port,
        allgather_packet_forward,
        allgather_switch_packet,
        allreduce_fused,
        allreduce_hierarchical,
        allreduce_packet,
        allreduce_pipeline_switch,
        allreduce_switch,
        alltoall_pipeline,
        reducescatter_packet_port,
        sendrecv_port,
    )
}
