// All that kernels of users' algorithms need, in one header.
//
//	AlgorithmArgs, Call           the kernel's parameter, and the call under way          algorithm.cuh
//	Channel: put, get             copies to and from a peer's window                      channel.cuh
//	Channel: put_packets,         small data whose words say themselves that they are     channel.cuh
//	    get_packets               there: neither signal nor fence
//	Call: signal, wait_for,       between blocks of one number, in up to 8 phases of an   algorithm.cuh
//	    barrier                   operation
//	Wait, Call::fail              every wait ends: with the value, at the deadline, or    wait.cuh
//	                              when the communicator is aborted
//	await4, await8, await16       values that are their own flags                         flags.cuh
//	RankSet, Round                sets of ranks, and ways through them                    ranks.cuh
//	Share, Walk                   how blocks and warps divide work                        walk.cuh
//	Sum                           sums of rows in fp32; define WEFT_TYPE first            sum.cuh
//
// Order. Stores of put are seen by a peer's block behind its wait for the signal that followed them, and
// not before. Packets are seen whole, each by itself, in any order. A get reads what the peer's block stored before
// the signal that this block has waited for; the peer must not change it before this block has signalled again.
// What kernels that ran before on a peer stored is seen behind a barrier, without more.
#pragma once
#include "algorithm.cuh"
#include "flags.cuh"
#include "sum.cuh"
#include "walk.cuh"
