package mlx5

import "math/bits"

// Words of doorbells are big-endian in memory. These functions give and take them as little-endian hosts load and
// store them.

// SendRecord is the word of a send queue that has next entries so far.
func SendRecord(next uint64) uint32 { return bits.ReverseBytes32(uint32(next & IndexMask)) }

// ConsumerRecord is the word of a completion queue of which taken completions were read.
func ConsumerRecord(taken uint64) uint32 { return bits.ReverseBytes32(uint32(taken & ConsumeMask)) }

// ReadRecord is the number in a record.
func ReadRecord(word uint32) uint32 { return bits.ReverseBytes32(word) }

// Register is the value of a doorbell register for a send queue that has next entries: their number and the queue
// pair's, the first 8 bytes of a control segment without opcode and segments. rdma-core stores the last entry's own
// first 8 bytes, whose index is next - 1. Cards take both.
func Register(next uint64, queue uint32) uint64 {
	return uint64(bits.ReverseBytes32(queue<<8))<<32 | uint64(bits.ReverseBytes32(uint32(next&IndexMask)<<8))
}

// ReadRegister is how many entries a doorbell register announces, modulo 2^16, and the queue pair. It takes an
// entry's first 8 bytes, too: those have a number of segments.
func ReadRegister(value uint64) (next uint16, queue uint32) {
	control, pair := bits.ReverseBytes32(uint32(value)), bits.ReverseBytes32(uint32(value>>32))
	next = uint16(control >> 8)
	if pair&segmentMask != 0 {
		next++
	}
	return next, pair >> 8
}
