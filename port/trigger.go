package port

// A trigger is what a pusher asks of the proxy: 32 bytes, four words.
//
//	word 0   size 40 | channel 16 | bit 63 of the value | op 6 | parity
//	word 1   source offset 48 | source memory 15 | parity
//	word 2   destination offset 48 | destination memory 15 | parity
//	word 3   the other 63 bits of the value | parity
//
// The parity, bit 63, is that of the slot's lap: see ring. A trigger of zeros is legal, and does nothing.
type trigger struct {
	op       uint8
	channel  uint16
	bytes    uint64 // 40 bits
	src, dst place
	value    uint64
}

// place is an offset in a memory of a proxy's table.
type place struct {
	memory uint16 // 15 bits
	offset uint64 // 48 bits
}

// What a trigger asks for, in this order: any of them together. Device: PORT_PUT and so on.
const (
	opPut    = 1 << 0
	opSignal = 1 << 1
	opAdd    = 1 << 2
	opFlush  = 1 << 3

	opBits = 6
)

const (
	triggerWords = 4
	sizeBits     = 40
	offsetBits   = 48
	memoryBits   = 15
	channelBits  = 16

	parity = uint64(1) << 63
)

func (t trigger) encode() [triggerWords]uint64 {
	return [triggerWords]uint64{
		t.bytes | uint64(t.channel)<<sizeBits | t.value>>63<<(sizeBits+channelBits) |
			uint64(t.op)<<(sizeBits+channelBits+1),
		t.src.encode(), t.dst.encode(), t.value &^ parity,
	}
}

func (p place) encode() uint64 { return p.offset | uint64(p.memory)<<offsetBits }

// decode reads a trigger from words, whatever their parity.
func decode(w [triggerWords]uint64) trigger {
	low := func(v uint64, bits uint) uint64 { return v & (1<<bits - 1) }
	at := func(v uint64) place { return place{uint16(low(v>>offsetBits, memoryBits)), low(v, offsetBits)} }
	return trigger{
		op:      uint8(low(w[0]>>(sizeBits+channelBits+1), opBits)),
		channel: uint16(low(w[0]>>sizeBits, channelBits)),
		bytes:   low(w[0], sizeBits),
		src:     at(w[1]), dst: at(w[2]),
		value: w[3]&^parity | low(w[0]>>(sizeBits+channelBits), 1)<<63,
	}
}
