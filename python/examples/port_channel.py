"""Two ranks put rows into each other's memory and signal, by libfabric or by memory. One machine plays two hosts so:

WEFT_HOSTID=one WEFT_RANK=0 WEFT_SIZE=2 WEFT_ADDRESS=127.0.0.1:4567 python port_channel.py &
WEFT_HOSTID=two WEFT_RANK=1 WEFT_SIZE=2 WEFT_ADDRESS=127.0.0.1:4567 python port_channel.py
"""

import numpy as np

import weft

ROUNDS, ROW = 100, 1024


def main() -> None:
    with weft.join() as comm, weft.port.Service(comm) as service:
        if comm.ranks != 2:
            raise SystemExit("start two ranks")
        # One to put from, and two to receive in by turns.
        rows = np.zeros((3, ROW), np.float32)
        memory = service.register(rows)
        channel = service.connect(1 - comm.rank, memory)
        for i in range(ROUNDS):
            rows[0] = i + comm.rank / 2
            channel.put_with_signal((1 + i % 2) * rows[0].nbytes, 0, rows[0].nbytes)
            channel.wait()  # the peer's row is there, and it has read the one before the last
            assert (rows[1 + i % 2] == i + channel.peer / 2).all()
            channel.flush()  # rows[0] may change
        channel.signal()
        channel.wait()  # the peer has flushed, too: a flush fails once the other rank has left
        print(f"rank {comm.rank}: {ROUNDS} rows came by {channel.kind.name}")


if __name__ == "__main__":
    main()
