"""What ranks that are processes do: one function a test, named on the command line."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time

import numpy as np
import pytest
from model import Batch

import weft


def collectives():
    with weft.join(deadline=20) as c, weft.Group(c) as g:
        x = np.arange(1000.0) + c.rank
        assert (g.all_reduce(x) == c.ranks * np.arange(1000.0) + c.ranks * (c.ranks - 1) / 2).all()
        assert (g.all_gather(np.array([c.rank]))[:, 0] == np.arange(c.ranks)).all()
        assert (g.broadcast(np.array([c.rank]), c.ranks - 1) == c.ranks - 1).all()
        g.barrier()


def layer():
    with weft.join(deadline=20) as c:
        batch = Batch(c.ranks, experts=2 * c.ranks, topk=3, hidden=16, max_tokens=9, seed=3)
        with weft.ep.Handle(c, experts=batch.experts, topk=3, hidden=16, max_tokens=9, payload="fp32") as h:
            for _ in range(5):
                with h.dispatch(batch.rows[c.rank], batch.topks[c.rank], batch.weights[c.rank]) as got:
                    for e in range(2):
                        got.rows[e] *= c.rank * 2 + e + 1
                    out = h.combine(got.rows, got)
                assert (out == batch.combined(c.rank, lambda e, row: row * (e + 1))).all()


def death():
    """The last rank is killed inside an exchange; the others hear of it before the deadline, mask it and go on."""
    with weft.join(deadline=20) as c:
        g = weft.Group(c)
        last = c.ranks - 1

        def exchanges():
            g.barrier()  # the others may still be in it when the last rank dies
            if c.rank == last:
                os.kill(os.getpid(), signal.SIGKILL)
            g.all_reduce(np.zeros(4))

        with pytest.raises(weft.DiedError) as e:
            exchanges()
        assert e.value.rank == last
        with pytest.raises(weft.DiedError):
            c.check()
        c.set_mask([last])
        assert c.mask == {last}
        assert (g.all_reduce(np.ones(4)) == last).all()


def layer_death():
    """The last rank is killed between exchanges of a layer; the others go on with the same handle,
    without its experts."""
    with weft.join(deadline=20) as c:
        last, x = c.ranks - 1, np.full((4, 8), c.rank + 1, np.float32)
        h = weft.ep.Handle(c, experts=c.ranks, topk=2, hidden=8, max_tokens=4, payload="fp32")
        topk, weights = (
            np.array([[c.rank, last]] * 4 if c.rank != last else [[0, last]] * 4),
            np.full((4, 2), 0.5, np.float32),
        )
        with h.dispatch(x, topk, weights) as got:
            assert (h.combine(got.rows, got) == x).all()
        if c.rank == last:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(weft.DiedError) as e:
            h.dispatch(x, topk, weights)
        assert e.value.rank == last
        c.set_mask([last])
        for _ in range(3):
            with h.dispatch(x, topk, weights) as got:
                assert (h.combine(got.rows, got) == x / 2).all()


def absence(deadline):
    """The last rank stays away; the others' wait ends at the deadline and names it."""
    with weft.join(deadline=float(deadline)) as c:
        g = weft.Group(c)
        g.barrier()
        if c.rank == c.ranks - 1:
            time.sleep(2.5 * float(deadline))
            return
        since = time.monotonic()
        with pytest.raises(weft.DeadlineError) as e:
            g.barrier()
        assert isinstance(e.value, TimeoutError)
        assert e.value.rank == c.ranks - 1
        assert float(deadline) * 0.9 < time.monotonic() - since < float(deadline) + 30


def pending():
    """Rank 0 ends amid a call that it has started, with its group and communicator open."""
    c = weft.join(deadline=60)
    g = weft.Group(c)
    if c.rank == 0:
        g.barrier()
        kept.append((c, g, g.all_reduce(np.ones(1000), async_op=True)))
        return

    def wait_for_the_end():
        g.barrier()
        until = time.monotonic() + 20
        while time.monotonic() < until:
            c.check()
            time.sleep(0.01)

    with pytest.raises((weft.AbortedError, weft.LeftError)) as e:
        wait_for_the_end()
    assert e.value.rank == 0
    g.close()
    c.close()


kept = []


def interrupt():
    """Rank 0 is interrupted while it waits: Ctrl-C is seen when the wait ends, and its peers are not harmed."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has what it starts in the background ignore it
    with weft.join(deadline=20) as c:
        g = weft.Group(c)
        g.barrier()
        if c.rank:
            (process,) = g.broadcast(np.array([0]), 0).tolist()
            time.sleep(1)
            os.kill(process, signal.SIGINT)
            g.barrier()
            g.barrier()
            return

        def wait():
            g.broadcast(np.array([os.getpid()]), 0)  # the signal may come from here on
            g.barrier()
            time.sleep(1)  # the peer's barrier may come before its signal does

        with pytest.raises(KeyboardInterrupt):
            wait()
        g.barrier()


def exception():
    """Rank 0 leaves a with block by an exception, with an array in hand; the others hear at once."""
    try:
        with weft.join(deadline=20) as c:
            h = weft.ep.Handle(c, experts=c.ranks, topk=1, hidden=4, max_tokens=1, payload="fp32")

            def dispatch():
                return h.dispatch(np.ones((1, 4), np.float32), np.zeros((1, 1), np.int64), np.ones((1, 1), np.float32))

            def exchange():
                got = dispatch()  # a rank that is late here hears of it from one that combines already
                h.combine(got.rows, got)

            if c.rank == 0:
                rows = dispatch().rows
                raise ZeroDivisionError
            with pytest.raises(weft.LeftError) as e:
                exchange()
            assert e.value.rank == 0
    except ZeroDivisionError:
        assert rows[0, 0].tolist() == [1, 1, 1, 1]  # the memory is still there


def channels(kind, hosts):
    """Each rank puts to the next one, round by round, over a channel of a kind."""
    os.environ["WEFT_HOSTID"] = hosts.split(",")[int(os.environ["WEFT_RANK"])]
    with weft.join(deadline=30) as c, weft.port.Service(c, sources=["127.0.0.1"], channels=3) as s:
        n, slot = c.ranks, 1000
        window = weft.Window(c, 8 * (1 + 4 * slot)) if kind == "memory" else None
        mine = window.array((1 + 4 * slot,), "int64") if window else np.zeros(1 + 4 * slot, np.int64)
        memory = s.register(mine)
        assert memory.size == memory.size_of(c.rank) == mine.nbytes
        to = {}
        for a in range(n):
            for b in range(a):
                if c.rank in (a, b):
                    to[a + b - c.rank] = s.connect(a + b - c.rank, memory)
        assert all(channel.kind.name == kind and channel.peer == peer for peer, channel in to.items())
        following, before = to[(c.rank + 1) % n], to[(c.rank - 1) % n]
        for i in range(20):
            at = 1 + i % 2 * slot
            mine[at + 2 * slot : at + 3 * slot] = np.arange(slot) * i + c.rank
            following.atomic_add(0, 5)
            if i % 2:
                following.put(8 * at, 8 * (at + 2 * slot), 8 * slot)
                following.signal()
                following.flush()
            else:
                following.put_with_signal_and_flush(8 * at, 8 * (at + 2 * slot), 8 * slot)
            if i % 3:
                before.wait()
            else:
                while not before.poll():
                    pass
            assert (mine[at : at + slot] == np.arange(slot) * i + before.peer).all()
            assert mine[0] == 5 * (i + 1)
            before.signal()
            following.wait()
        for wrong in ((-1, 0, 8), (0, -1, 8), (0, 0, -8), (8, 0, mine.nbytes), (0, 8, mine.nbytes)):
            with pytest.raises(weft.InvalidError):
                following.put(*wrong)
        with pytest.raises(weft.InvalidError):
            following.atomic_add(4, 1)
        with pytest.raises(weft.UnsupportedError, match="on the host"):
            following.device_handle()
        with pytest.raises(weft.DeadlineError), weft.timeout(0.05):
            following.wait()
        following.check()
        if n == 2:
            with pytest.raises(weft.InvalidError, match="the moon"):
                s.connect(1 - c.rank, memory, kind="the moon" if c.rank else "auto")
        with pytest.raises(weft.OperandError if c.rank == 0 else weft.InvalidError):
            s.register([1, 2] if c.rank == 0 else mine)
        bytes_there = np.zeros(1 + c.rank, np.uint8)
        other = s.register(bytes_there), s.register(None)
        assert [m.size_of(n - 1) for m in other] == [n, 0]
        if kind == "fabric":
            part = following.using(other[0], memory)
            mine[1 + 2 * slot] = 7 + c.rank
            part.put_with_signal_and_flush(0, 8 * (1 + 2 * slot), 1)
            before.wait()
            assert bytes_there[0] == 7 + before.peer
            part.close()


def mscclpp_channels(hosts, transport):
    """Ranks connect, tell each other of memories, and put by MSCCL++'s names."""
    import mscclpp

    hosts = hosts.split(",")
    rank, ranks = int(os.environ["WEFT_RANK"]), len(hosts)
    os.environ["WEFT_HOSTID"] = hosts[rank]
    group = mscclpp.CommGroup(interfaceIpPortTrio=os.environ["WEFT_ADDRESS"], rank=rank, size=ranks)
    comm, others = group.communicator, [r for r in range(ranks) if r != rank]
    assert isinstance(comm, weft.Communicator)
    assert isinstance(comm, mscclpp.Communicator)
    assert mscclpp.Communicator(group.bootstrap) is comm

    # By hand. Ranks get what comes in any order, and messages of a tag in theirs.
    kind = mscclpp.Transport[transport]
    connections = group.make_connection(others[::-1], kind)
    assert all(c.transport() == kind == c.remote_transport() for c in connections.values())
    if rank == 0:
        group.send(np.arange(100), others[-1], 7)
        group.send(np.arange(30000), others[-1], 5)
    if rank == ranks - 1:
        large, small = np.zeros(30000, int), np.zeros(100, int)
        group.recv(large, 0, 5)
        group.recv(small, 0, 7)
        assert (large == np.arange(30000)).all()
        assert (small == np.arange(100)).all()
    group.barrier()
    mine = np.zeros((2, ranks, 500), np.int32)
    memory = comm.register_memory(mine.ctypes.data, mine.nbytes, kind)
    for r in others:
        comm.send_memory(memory, r)
        comm.send_memory(comm.register_memory(mine.ctypes.data, 4, kind), r, tag=3)
    of_tag = {r: comm.recv_memory(r, 3) for r in others}
    theirs = {r: comm.recv_memory(r) for r in others}
    later = {r: comm.build_semaphore(connections[r], r) for r in others}
    assert {f.get().size() for f in of_tag.values()} == {4}
    group.barrier()
    proxy = mscclpp.ProxyService()
    own = proxy.add_memory(memory)
    ids = {r: (proxy.add_semaphore(f.get()), proxy.add_memory(theirs[r].get())) for r, f in later.items()}
    channels = {r: proxy.port_channel(semaphore, there, own) for r, (semaphore, there) in ids.items()}
    proxy.start_proxy()
    for i in range(10):
        mine[1] = rank * 1000 + i
        for r, channel in channels.items():
            channel.put_with_signal(4 * 500 * rank, 4 * 500 * (ranks + r), 4 * 500)
        for r, channel in channels.items():
            channel.wait()
            assert (mine[0, r] == r * 1000 + i).all()
            channel.flush()
        group.barrier()
    # The host by itself.
    connections[others[0]].write(theirs[others[0]].get(), 4 * 500 * rank, memory, 4 * 500 * ranks, 8)
    connections[others[0]].flush()
    count = np.array([5], np.int64)
    connections[others[0]].update_and_sync(theirs[others[0]].get(), 8 * 250 * rank + 800, count.ctypes.data, 12)
    assert count[0] == 12
    host = mscclpp.Host2HostSemaphore(comm, connections[others[0]]) if ranks == 2 else None
    if host:
        host.signal()
        host.wait()
        assert not host.poll()
    group.barrier()
    # As CommGroup makes them.
    data, scratch = np.full(64, rank, np.float32), np.zeros((ranks, 64), np.float32)
    registered = group.register_local_memory(scratch, connections)
    made = group.make_port_channels_with_scratch(proxy, data, registered, connections)
    for channel in made.values():
        channel.put_with_signal_and_flush(256 * rank, 0, 256)
    for r, channel in made.items():
        channel.wait()
        assert (scratch[r] == r).all()
    for r, channel in group.make_port_channels(proxy, data, connections).items():
        channel.put_with_signal_and_flush(4 * rank, 0, 0)
        channel.wait()
        assert channel.peer == r
    for channel in group.register_semaphore_with_proxy(proxy, connections).values():
        channel.signal()
        channel.wait()
    assert sorted(group.register_memory_with_proxy(proxy, data, connections)) == list(range(ranks))

    # Where ranks map each other's windows.
    window = weft.Window(comm, 4096)
    array = window.array((1024,), "int32")
    array[:512] = rank
    near = {r: c for r, c in connections.items() if hosts[r] == hosts[rank]}
    for r, channel in group.make_memory_channels(array, near).items():
        channel.put_with_signal(2048 + 4 * rank, 0, 4)
        channel.wait()
        assert channel.kind.name == "memory"
        assert array[512 + r] == r
        with pytest.raises(mscclpp._mscclpp.Error, match=r"weft\.cuh"):
            channel.device_handle()
    for r in set(others) - set(near):
        with pytest.raises(mscclpp._mscclpp.Error, match="port channel"):
            mscclpp.MemoryChannel(later[r].get(), theirs[r].get(), memory)
    with pytest.raises(weft.UnsupportedError, match="on the host"):
        channels[others[0]].device_handle()
    with pytest.raises(mscclpp._mscclpp.Error, match="itself"):
        comm.connect(kind, rank)
    if rank == 1:
        comm.send_memory(memory, 0, 9)
    if rank == 0:
        with pytest.raises(mscclpp._mscclpp.Error, match="a connection was to come") as e:
            comm.connect(kind, 1, 9).get()
        assert e.value.args[0] == mscclpp.ErrorCode.InvalidUsage
    if len(set(hosts)) == ranks:
        futures = [comm.connect(mscclpp.Transport.CudaIpc, r, 11) for r in others]
        for future in futures:
            with pytest.raises(mscclpp._mscclpp.Error, match="within a host"):
                future.get()
    proxy.stop_proxy()
    group.barrier()
    group.close()


def mscclpp_bootstrap(folder, fabric):
    """Ranks meet by an id; without libfabric too, where memory channels and messages are to be had."""
    if not int(fabric):
        os.environ["WEFT_LIBFABRIC"] = "/nowhere"
    import pickle
    from pathlib import Path

    import mscclpp

    rank, ranks, file = int(os.environ["WEFT_RANK"]), int(os.environ["WEFT_SIZE"]), Path(folder) / "id"
    bootstrap = mscclpp.TcpBootstrap.create(rank, ranks)
    with pytest.raises(mscclpp._mscclpp.Error, match="have not met"):
        bootstrap.barrier()
    with pytest.raises(mscclpp._mscclpp.Error, match="have not met"):
        mscclpp.Communicator(bootstrap)
    with pytest.raises(mscclpp._mscclpp.Error, match="have not met by one"):
        bootstrap.get_unique_id()
    if rank == 0:
        file.with_suffix(".new").write_bytes(pickle.dumps(mscclpp.TcpBootstrap.create_unique_id()))
        file.with_suffix(".new").rename(file)
    until = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    bootstrap.initialize(pickle.loads(file.read_bytes()), timeout_sec=40)
    bootstrap.get_unique_id()
    with pytest.raises(mscclpp._mscclpp.Error, match="have met"):
        bootstrap.initialize("127.0.0.1:1")
    assert (bootstrap.get_rank(), bootstrap.get_n_ranks(), bootstrap.get_n_ranks_per_node()) == (rank, ranks, ranks)
    comm = mscclpp.Communicator(bootstrap)
    peer, kind = 1 - rank, mscclpp.Transport.CudaIpc
    connection = comm.connect_on_setup(peer, 2, kind)
    comm.setup()
    connection = connection.get()
    assert (comm.remote_rank_of(connection), comm.tag_of(connection)) == (peer, 2)
    # Messages, of which the peer reads one after the other has sent more than there is room for.
    text, room = bytes(range(200)), np.zeros(200, np.uint8)
    bootstrap.send(text, peer, 1)
    bootstrap.send(np.arange(200, dtype=np.uint8).ctypes.data, 100, peer, 2)
    came = bytearray()
    bootstrap.recv(room.ctypes.data, 200, peer, 2)
    assert (room == [*range(100), *[0] * 100]).all()
    bootstrap.recv(came, peer, 1)
    assert came == text
    if rank == 0:
        bootstrap.send(bytes(300_000), peer, 3)
    else:
        bootstrap.recv(came, peer, 3)
        assert came == bytes(300_000)
    bootstrap.send(b"1234", rank, 4)
    bootstrap.recv(came, rank, 4)
    assert came == b"1234"
    with pytest.raises(weft.InvalidError, match="has sent none"):
        bootstrap.recv(came, rank, 4)
    bootstrap.send(text, peer, 6)
    with pytest.raises(mscclpp._mscclpp.Error, match="room for 10"):
        bootstrap.recv(room.ctypes.data, 10, peer, 6)
    with pytest.raises(weft.InvalidError, match="rank 9"):
        bootstrap.send(text, 9, 1)
    # Memory channels.
    window = weft.Window(comm, 64)
    array = window.array((8,), "int64")
    memory = comm.register_memory(array.ctypes.data, 64, kind)
    comm.send_memory_on_setup(memory, peer, 0)
    theirs = comm.recv_memory_on_setup(peer, 0).get()
    assert (theirs.data(), theirs.size(), memory.size()) == (0, 64, 64)
    semaphore = comm.build_semaphore(connection, peer).get()
    channel = mscclpp.MemoryChannel(semaphore, theirs, memory)
    array[0] = 7 + rank
    channel.put_with_signal(8, 0, 8)
    channel.wait()
    assert array[1] == 7 + peer
    proxy = mscclpp.ProxyService()
    number = proxy.build_and_add_semaphore(comm, connection)
    device = proxy.semaphore(number)
    device.signal()
    proxy.base_port_channel(number).wait()
    with pytest.raises(mscclpp._mscclpp.Error, match="port_channel"):
        device.device_handle()
    for wrong in (
        lambda: proxy.port_channel(number, 0, 0),
        lambda: proxy.semaphore(5),
        lambda: mscclpp.ProxyService(500),
    ):
        with pytest.raises(mscclpp._mscclpp.Error):
            wrong()
    plain = np.zeros(4)
    of_plain = proxy.add_memory(comm.register_memory(plain.ctypes.data, 32, kind))
    again = mscclpp.RegisteredMemory.deserialize(theirs.serialize())
    if int(fabric):
        proxy.port_channel(number, proxy.add_memory(again), of_plain).put_with_signal_and_flush(16, 0, 8)
        proxy.base_port_channel(number).wait()
    else:
        comm.send_memory(proxy._memories[of_plain], peer, 8)
        with pytest.raises(weft.UnsupportedError, match="window"):
            proxy.port_channel(number, proxy.add_memory(comm.recv_memory(peer, 8).get()), of_plain)
    with pytest.raises(mscclpp._mscclpp.Error, match="no memory of this version"):
        mscclpp.RegisteredMemory.deserialize(b"abc")
    flags = mscclpp.TransportFlags(kind) | mscclpp.Transport.IB0
    assert (flags.count(), flags.has(kind), (flags & kind) == kind, (flags ^ kind) == mscclpp.Transport.IB0) == (
        2,
        True,
        True,
        True,
    )
    assert (~flags).count() == mscclpp.Transport.NumTransports - 2
    assert mscclpp.TransportFlags().none()
    bootstrap.barrier()
    if rank == 0:
        comm.close()
    else:
        time.sleep(0.2)
        proxy.stop_proxy()  # also when the peer has left
        comm.close()


def lost_channel(hosts):
    """The last rank is killed while the others wait for its signals; they mask it and go on."""
    os.environ["WEFT_HOSTID"] = hosts.split(",")[int(os.environ["WEFT_RANK"])]
    with weft.join(deadline=30) as c, weft.port.Service(c, sources=["127.0.0.1"]) as s:
        last, mine = c.ranks - 1, np.zeros(8, np.uint8)
        memory = s.register(mine)
        to = {}
        for a in range(c.ranks):
            for b in range(a):
                if c.rank in (a, b):
                    to[a + b - c.rank] = s.connect(a + b - c.rank, memory)
        if c.rank == last:
            for peer in range(last):  # all have connected by then
                to[peer].wait()
            os.kill(os.getpid(), signal.SIGKILL)
        to[last].signal()
        with pytest.raises(weft.DiedError) as e:
            to[last].wait()
        assert e.value.rank == last
        c.set_mask([last])
        for _ in range(3):
            to[1 - c.rank].put_with_signal(0, 4, 4)
            to[1 - c.rank].wait()
        with pytest.raises(weft.MaskedError):
            to[last].signal()


def examples(folder, *programs):
    """Programs of the examples, one after the other: a name with its arguments each."""
    sys.path.insert(0, folder)  # as it is where they are started by themselves
    for program in programs:
        name, *sys.argv[1:] = program.split()
        runpy.run_path(os.path.join(folder, name), run_name="__main__")


def program(file):
    """A program of the documentation's."""
    runpy.run_path(file, run_name="__main__")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
    print("ok")
