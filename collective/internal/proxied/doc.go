// Package proxied runs the collectives of GPUs that are on several hosts: a stream hands each call to a goroutine of
// the host (package engine/gpu/proxy), which makes it on pinned memory by the host engine.
//
// # Data flow
//
//	stream   ... hand-over: waits, and copies what it is told ...
//	proxy        in -> pinned | host engine, between all ranks | pinned -> out
//
// A call goes through two pairs of areas in pinned memory, an input and an output each. What does not fit is cut in
// pieces: of elements where all ranks have the same ones, of each rank's part elsewhere. Piece i+1 comes from the GPU,
// and i-1 goes back, while the host engine works on i. Each piece is a call of the host engine that carries the whole
// call's fingerprint, so calls that differ are found in the first one.
//
// An all-reduce that is hierarchical is made by the hosts' kernels where each host has two ranks or more:
//
//	stream   reduce-scatter of the host's ranks | hand-over | all-gather of the host's ranks
//	proxy                                        chunk -> pinned | fold with the ranks of the same number | -> chunk
//
// The kernels are those of package gpu, for which ranks of other hosts are as masked. So of S bytes each of G ranks
// moves S/G over PCIe, and the network carries what the host engine's form does.
//
// An all-to-all-v and messages are made whole, in pinned memory that grows to what they need: ranks do not know the
// lengths of others, and so not how many pieces those would make.
//
// Users' algorithms that are programs, plans say, are enqueued as they are, without the proxy.
//
// # Results
//
// They are the host engine's, bit by bit: hierarchical between hosts, and hierarchical-exact where a call names it.
// The algorithm is chosen when the call is enqueued, by the host engine's rules, and named in every piece. Kernels
// that fold within a host do so in rank order, in fp32, and round to the type: as the host engine folds partials.
//
// # Graphs
//
// Calls may be captured, at any time, and replayed: the kernel of the hand-over counts on the device. What a replay
// reads is read then, device counts and scalars too. A captured call cannot make pinned memory: an all-to-all-v, or
// messages, longer than any before are refused, and go once outside of a capture first. It cannot load kernels of a
// type either.
//
// # Failures
//
// A rank's own arguments are refused when it enqueues, as on GPUs of one host. All else is found by the host engine, in
// its words, and is the communicator's failure: that a rank died or is late, that calls differ. Outputs are then
// undefined. The stream goes on.
//
// # Cost
//
// Operands cross PCIe twice, but for what kernels have folded before: the floor is max(2 x bytes / PCIe, the host
// engine's). All that moves and does not reduce crosses, also between GPUs of one host.
package proxied
