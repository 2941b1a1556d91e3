package bootstrap

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/weftgo/weft/internal/parse"
)

// ID is everything that a rank needs to find a job: where rank 0 listens, which job it is, and the
// job's secret. Rank 0 makes it and hands it out by any means that strangers can't read: its text
// contains the secret.
type ID struct {
	job    jobID
	secret [16]byte
	port   uint16
	addrs  []netip.Addr
}

// Text: a prefix, then unpadded base64url of
//
//	job 8, secret 16, port 2, then per address its length (4 or 16) and bytes, then a CRC-32 of all that
const (
	idPrefix = "weft1-"
	idFixed  = 8 + 16 + 2

	// MaxIDText is the length of the longest text of an ID, in bytes.
	MaxIDText = 128
)

// maxIDBytes is what fits MaxIDText.
var maxIDBytes = base64.RawURLEncoding.DecodedLen(MaxIDText - len(idPrefix))

// IDOption says where a new ID's rank 0 listens.
type IDOption func(*idConfig)

type idConfig struct {
	iface    string
	loopback bool
	prefer   netip.Addr
}

// OnInterface listens on one network interface, given by its name or one of its addresses.
func OnInterface(name string) IDOption { return func(c *idConfig) { c.iface = name } }

// OnLoopback listens for ranks of this host only.
func OnLoopback() IDOption { return func(c *idConfig) { c.loopback = true } }

// preferring puts an address first that is known to be reached by peers.
func preferring(a netip.Addr) IDOption { return func(c *idConfig) { c.prefer = a } }

// NewID makes the ID of a new job. Its port, one that the system chooses, listens from now on, so
// ranks may dial it at once; their join goes on when this process calls [DialTCP] with the ID as
// rank 0. An ID that is not used is released with Release.
func NewID(opts ...IDOption) (ID, error) {
	var cfg idConfig
	for _, o := range opts {
		o(&cfg)
	}
	var id ID
	rand.Read(id.job[:])
	rand.Read(id.secret[:])
	var host netip.Addr
	switch {
	case cfg.iface != "":
		a, err := InterfaceAddr(cfg.iface)
		if err != nil {
			return ID{}, fmt.Errorf("new id: %w", err)
		}
		host = a
	case cfg.loopback:
		host = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	if host.IsValid() {
		id.addrs = []netip.Addr{host}
	} else {
		id.addrs = published(cfg.prefer)
	}
	p, err := holdPort(netip.AddrPortFrom(host, 0))
	if err != nil {
		return ID{}, fmt.Errorf("new id: %w", err)
	}
	id.port = p.number
	return id, nil
}

// published chooses addresses of this host: prefer first, then others, loopback only if there is
// nothing else; as many as fit.
func published(prefer netip.Addr) []netip.Addr {
	var addrs, inner []netip.Addr
	if prefer.IsValid() {
		addrs = append(addrs, prefer)
	}
	for _, a := range usable(net.InterfaceAddrs) {
		switch {
		case a == prefer:
		case a.IsLoopback():
			inner = append(inner, a)
		default:
			addrs = append(addrs, a)
		}
	}
	if len(addrs) == 0 {
		addrs = append(inner, netip.AddrFrom4([4]byte{127, 0, 0, 1}))[:1]
	}
	n := idFixed + crc32.Size
	for i, a := range addrs {
		n += 1 + a.BitLen()/8
		if n > maxIDBytes || i == maxAddresses {
			return addrs[:i]
		}
	}
	return addrs
}

// Release releases an ID that no rank 0 of this process has used, and closes its port. It does
// nothing otherwise.
func (id ID) Release() error {
	ports.Lock()
	p := ports.held[id.port]
	ports.Unlock()
	if p != nil && id.port != 0 {
		p.release(nil)
	}
	return nil
}

// IsZero reports whether the ID is none.
func (id ID) IsZero() bool { return id.port == 0 }

// Equal reports whether two IDs are the same.
func (id ID) Equal(other ID) bool {
	return id.job == other.job && id.secret == other.secret && id.port == other.port && slices.Equal(id.addrs, other.addrs)
}

// String returns the ID's text, of at most [MaxIDText] bytes. It is a secret.
func (id ID) String() string {
	if id.IsZero() {
		return ""
	}
	b := append(append(id.job[:8:8], id.secret[:]...), byte(id.port), byte(id.port>>8))
	for _, a := range id.addrs {
		s := a.AsSlice()
		b = append(append(b, byte(len(s))), s...)
	}
	b = le.AppendUint32(b, crc32.ChecksumIEEE(b))
	return idPrefix + base64.RawURLEncoding.EncodeToString(b)
}

// MarshalText returns the ID's text.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText is [ParseID].
func (id *ID) UnmarshalText(text []byte) error {
	v, err := ParseID(string(text))
	if err == nil {
		*id = v
	}
	return err
}

// ParseID parses the text of an ID. White space around it is ignored.
func ParseID(text string) (ID, error) {
	id, err := parseID(strings.TrimSpace(text))
	if err != nil {
		return ID{}, fmt.Errorf("unique id: %w", err)
	}
	return id, nil
}

func parseID(text string) (ID, error) {
	body, ok := strings.CutPrefix(text, idPrefix)
	if !ok {
		return ID{}, fmt.Errorf("does not begin with %q", idPrefix)
	}
	if len(text) > MaxIDText {
		return ID{}, fmt.Errorf("longer than %d bytes", MaxIDText)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil || strings.ContainsAny(body, "\r\n") {
		return ID{}, errors.New("not base64url")
	}
	if len(b) < idFixed+crc32.Size {
		return ID{}, errors.New("cut short")
	}
	b, sum := b[:len(b)-crc32.Size], b[len(b)-crc32.Size:]
	if le.Uint32(sum) != crc32.ChecksumIEEE(b) {
		return ID{}, errors.New("mistyped: its checksum does not fit")
	}
	var id ID
	f := fields{parse.Fields{Rest: b}}
	copy(id.job[:], f.Take(len(id.job)))
	copy(id.secret[:], f.Take(len(id.secret)))
	id.port = le.Uint16(f.Take(2))
	for len(f.Rest) > 0 && !f.Bad {
		a, ok := netip.AddrFromSlice(f.Take(int(f.U8())))
		if !ok || a.Is4In6() {
			return ID{}, errors.New("malformed address")
		}
		id.addrs = append(id.addrs, a)
	}
	if f.Bad || len(id.addrs) == 0 || id.port == 0 {
		return ID{}, errors.New("no address")
	}
	return id, nil
}

// targets lists the host:port texts to dial.
func (id ID) targets() []string {
	list := make([]string, len(id.addrs))
	for i, a := range id.addrs {
		list[i] = netip.AddrPortFrom(a, id.port).String()
	}
	return list
}

// loopback reports whether all ranks are on one host.
func (id ID) loopback() bool {
	for _, a := range id.addrs {
		if !a.IsLoopback() {
			return false
		}
	}
	return true
}

// Dial joins the job of the ID. A rank of "weft run" that dials as the same rank of a job of the
// same size learns of ranks that end before they join.
func (id ID) Dial(ctx context.Context, rank, size int) (Bootstrap, error) {
	return DialTCP(ctx, TCPConfig{Rank: rank, Size: size, ID: id, ended: ledgerOf(rank, size)})
}
