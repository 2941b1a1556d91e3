package wire

import "encoding/binary"

// segment is an IPv4 packet, of which the wire reads and makes those of TCP.
type segment []byte

const (
	ipHeader  = 20
	tcpHeader = 20
	protoTCP  = 6

	flagSYN   = 2
	flagReset = 4
	flagACK   = 16
)

// connection is the ports of a TCP connection, on host 0 and on host 1.
type connection [2]uint16

func (s segment) tcp() bool {
	return len(s) >= ipHeader+tcpHeader && s[0] == 0x45 && s[9] == protoTCP
}

func (s segment) connection(from int) (c connection) {
	c[from], c[1-from] = binary.BigEndian.Uint16(s[ipHeader:]), binary.BigEndian.Uint16(s[ipHeader+2:])
	return c
}

// acknowledged is the number of the byte that the sender expects next.
func (s segment) acknowledged() uint32 { return binary.BigEndian.Uint32(s[ipHeader+8:]) }

func (s segment) flags() byte { return s[ipHeader+13] }

// reset is a segment that ends the connection: for the sender of s as if it came from the receiver, or the other way
// round.
func (s segment) reset(forSender bool) []byte {
	r := make([]byte, ipHeader+tcpHeader)
	r[0], r[8], r[9] = 0x45, 64, protoTCP
	binary.BigEndian.PutUint16(r[2:], uint16(len(r)))
	t := r[ipHeader:]
	if forSender {
		copy(r[12:16], s[16:20])
		copy(r[16:20], s[12:16])
		copy(t[0:2], s[ipHeader+2:ipHeader+4])
		copy(t[2:4], s[ipHeader:ipHeader+2])
		copy(t[4:8], s[ipHeader+8:ipHeader+12]) // what the sender expects next
	} else {
		copy(r[12:20], s[12:20])
		copy(t[0:8], s[ipHeader:ipHeader+8])
	}
	t[12], t[13] = tcpHeader/4<<4, flagReset
	binary.BigEndian.PutUint16(r[10:], checksum(0, r[:ipHeader]))
	binary.BigEndian.PutUint16(t[16:], checksum(protoTCP+tcpHeader, r[12:]))
	return r
}

// checksum is the Internet's, RFC 1071.
func checksum(sum uint32, b []byte) uint16 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) > 0 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
