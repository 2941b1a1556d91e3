// Package device has the headers that kernels include, and the Go mirrors of the structs that
// kernels and the host share.
//
// # Headers
//
// [Headers] goes into the kernel.Spec of a kernel that includes them. Each header is one idea, and
// includes what it uses:
//
//	ptx.cuh      the PTX instructions that Weft uses, as functions, by section of the PTX ISA
//	ranks.cuh    sets of ranks, and ways through them
//	comm.cuh     Group, State, Count, Record; the Operation under way
//	trace.cuh    records of when an operation came where, in kernels that trace
//	wait.cuh     waits for peers with deadline and abort word
//	flags.cuh    values that are their own flags
//	channel.cuh  put, get, signal, wait and packets: enough for most kernels of your own
//	port.cuh     port channels: triggers for a proxy on the host, to ranks that this GPU does not reach
//	nic.cuh      queue pairs of a network card, which kernels drive without a proxy
//	progress.cuh words by which a kernel meets a collective of another stream, part by part
//	opening.cuh  the opening exchange: which ranks have begun, and with which call
//	marks.cuh    a barrier between the blocks of one number on all ranks
//	walk.cuh     how blocks, warps and threads divide work
//	bulk.cuh     bulk copies through shared memory (Hopper and later)
//	sum.cuh      sums of rows in fp32, rounded once
//	ops.cuh      the numbers of weft.Op
//	fold.cuh     reductions of any type and op, in the order of the calls, rounded once
//	unaligned.cuh  vectors of 16 bytes at any address
//	scale.cuh    scales of numbers that become e4m3
//	algorithm.cuh  the call under way in a kernel of a user's algorithm of a group of collectives
//	weft.cuh     all that such a kernel needs
//
// # Kernels of your own
//
//	#include "channel.cuh"
//	using namespace weft;
//
//	struct Arguments { State *state; const void *row; Group group; };
//
//	extern "C" __global__ void hello(const __grid_constant__ Arguments a) {
//		Operation o;
//		if (!o.begin(a.group, a.state, 0, HELLO)) return;
//		Wait wait(a.group, a.state, HELLO, o.epoch);
//		Channel other(a.group, 1 - a.group.rank);
//		other.put(ROWS + (o.epoch & 1) * BYTES, a.row, BYTES, Threads::of_block());
//		other.signal(SIGNAL, o.epoch);
//		if (other.wait(wait, SIGNAL, o.epoch)) ... // the other's row is here
//		o.end(a.state);
//	}
//
// The package's example is the whole of it. A kernel may also stand in a namespace, or be a
// template's. Then the kernel.Spec's Kernels has its C++ name, and a module finds it by the cubin's
// Symbol of that name. Kernels that only compute need ptx.cuh at most.
//
// The host fills a [Group] with every rank's segment of a window, at addresses that the launching
// GPU reaches. It begins a [State], with a [Count] for each block behind it, in memory of that GPU: all
// zero but Timeout. Both live as long as launches do. Package engine/gpu does all this.
//
// # Rules
//
// Every wait is a Wait's. It ends when the value has arrived, after State.timeout, or when the
// abort word is set; in the last two cases it leaves a [Record] with the waiting rank and its peer.
// The awaited value may be used only if !wait.over. After a wait that timed out no kernel of the
// State runs until the host has cleared Stopped.
//
// Either all threads of all blocks reach the end of the operation, or all end early; all launches
// of a State have as many blocks. A kernel that waits for a peer must have all its blocks resident
// on every rank: launch no more blocks than the SMs hold beside other kernels, and load all modules
// before.
//
// A value that is its own flag is sent by one store of 4, 8 or 16 bytes. It never contains a word
// of ones (clean ensures that), and goes to a buffer that the receiver has filled with ones since
// the last value. Such values have three buffers, used in turn. In each operation the receiver fills
// the buffer of the turn before with ones. The sender writes to it again two operations later, after
// an opening of this rank. Other data goes before a signal, and is read after the wait for it.
//
// # Queue pairs
//
// A kernel with a [NicPeer] writes to a rank on another host by itself. It writes an entry into a send queue, the
// number of entries into the doorbell record, and rings the card's register. The card carries the entries out and
// writes completions, which kernels read when a queue is full and in a flush.
//
//	entries, completions, record, register   shared with the card; package fabric/mlx5 has the formats
//	NicState, a mark for each entry          in this GPU's memory, all zero in the beginning
//
// Invariant: what the card may read was fenced at system scope before the word that lets it. The entry and the
// bytes that it names come before the entry's mark, all marked entries before the record, the record before the
// register. The card takes the number of entries from the register, or from the record if it lost a ring: both must
// cover entries that are whole. A slot is written again only after a completion of its entry, or of a later one, was
// read. A quarter of the queue ends in a signalled entry, so there always is one to wait for.
//
// A write costs one compare-and-swap, three stores of 16 bytes, a fence and a mark: 103 instructions on its longest
// path on Hopper (TestWriteInstructions). A ring costs two atomic additions, two stores and the fences between; it
// covers all entries before it. The floor is one trip over PCIe for the entries, and one for the register.
//
// # Names in errors
//
// A record has numbers: the lane's, which comes from Group.Lane, the operation's, and for a mismatch
// the tags of two calls. The owner of a lane gives the [Words] for them.
//
// # Domains
//
// A kernel is compiled for a domain of 64 ranks, or of as many as [DomainDefine] says: 32 to 128. In a domain of
// up to 64 ranks a set of ranks is one word, and in one of 32 a lane of a warp has one rank. Kernels whose first
// microsecond counts are compiled for 32, and again for a larger domain where a group has more ranks. The host's
// Group has [MaxRanks] windows, of which a launch hands a kernel as many as its domain has.
//
// Package emulate runs such kernels without a GPU and finds mistakes that a GPU would hide for
// long.
package device
