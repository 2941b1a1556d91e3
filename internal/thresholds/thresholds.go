// Package thresholds has the sizes from which handles of package ep on GPUs work in another way.
// They are variables so that tests reach each way with little data; nothing else changes them.
package thresholds

// BulkRowBytes is the least size of rows that go by bulk copies.
var BulkRowBytes = 1 << 10

// From so much on, some blocks of an operation send and the others receive.
var (
	ApartRankBytes   = 192 * 14 << 10 // of rank-major rows that a rank dispatches
	ApartExpertBytes = 128 * 14 << 10 // of rows that all ranks dispatch by expert
	// of sums; from there on blocks have many threads. A combine by expert, and a small one, is
	// always so
	ApartCombineBytes = 96 * 14 << 10
)

// CombineRanks makes combines of sums use the kernels for so many ranks at least.
var CombineRanks = 1

// PortTokens is the most tokens of a rank whose rows kernels and port channels take between GPUs of several hosts.
// They take a row to each rank there unless they are told otherwise, and a processor takes it to each host once.
var PortTokens = 512

// HostCopyBytes is how many bytes a rank must spare other hosts for rows to be taken once to each host: a second step,
// inside the host, takes some 5 us, in which a card of 400 Gb/s moves so much.
var HostCopyBytes = 256 << 10
