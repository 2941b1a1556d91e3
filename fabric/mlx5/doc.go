// Package mlx5 has the formats of the work queues of NVIDIA's network cards, from ConnectX-4 on: what a kernel or a
// host writes so that a card carries bytes, and what the card answers. It is plain data, opens nothing, and needs no
// card.
//
// # Data flow
//
//	entry -> send queue      Entry.Encode: 64 bytes, at the entry's number modulo the depth
//	count -> doorbell record SendRecord: how many entries there are
//	count -> register        Register: the card begins
//	card  -> completion      Completion.Encode; a poller's DecodeCompletion
//	count -> consumer record ConsumerRecord: how many completions were read
//
// # Layout
//
// An entry is a block of 64 bytes made of segments of 16. All numbers are big-endian, payloads are as they are.
//
//	at   bytes  control segment
//	 0       4  opcode modifier 8 | index 16 | opcode 8
//	 4       4  number of the queue pair 24 | segments 8
//	11       1  flags
//	12       4  immediate
//	            remote segment, of writes and atomics
//	16       8  address
//	24       4  key
//	            data segment, or inline data, or the operands of an atomic
//	32       4  bytes                     | bytes, top bit set | add, 8 bytes, or 4 and their boundary
//	36       4  key                       | payload, 4 to 28   |
//	40       8  address                   |                    | boundary of an add of 8 bytes, or compare
//	            data segment of an atomic: where its old value goes, big-endian
//	48      16  bytes, key, address
//
// A completion has 64 bytes too, of which a requester's has these:
//
//	54       1  vendor's syndrome, of errors
//	55       1  syndrome, of errors
//	56       4  opcode of the entry 8 | number of the queue pair 24
//	60       2  index of the entry
//	63       1  opcode 4 | format 3 | owner 1
//
// A doorbell record has two words. The first is the receive queue's, the second the send queue's: its low 16 bits are
// the number of the next entry. A completion queue's record holds 24 bits.
//
// # Numbers
//
// Queues are powers of two, of at most 32768 entries, since an index has 16 bits and a difference of indices must say
// which of two is the later. Writers keep 64-bit counts and publish the low bits. Entry n of a completion queue of 2^k
// is the reader's when its owner bit is bit k of n, and its opcode is not KindNone.
//
// # Source
//
// The values were read in rdma-core 65 (providers/mlx5: mlx5dv.h, qp.c, cq.c) and are typed anew. Masked atomics, which
// rdma-core does not post, are those of NVSHMEM 3.4 (ibgda.cuh). testdata/vectors.txt has bytes that rdma-core's
// mlx5_post_send wrote, and which Encode must write.
package mlx5
