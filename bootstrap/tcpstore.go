package bootstrap

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"github.com/weftgo/weft/internal/filelimit"
)

// storeClient speaks the wire protocol of PyTorch's TCPStore: one-byte operations, then fields in
// the byte order of the machine, strings as a 64-bit length and bytes. Both of PyTorch's servers,
// the libuv one and the older one, speak it.
type storeClient struct {
	conn *net.TCPConn
	r    *bufio.Reader
}

const (
	storeValidate = 0
	storeSet      = 1
	storeGet      = 3
	storeAdd      = 4
	storeWait     = 6
	storePing     = 13

	storeMagic       = 0x3C85F7CE
	storeStopWaiting = 0

	// maxStoreValue bounds a value that this client is ready to receive. Its own are IDs.
	maxStoreValue = 64 << 10
)

var ne = binary.NativeEndian

// dialStore connects to the store at address, trying again until it answers or the context ends.
func dialStore(ctx context.Context, address string) (*storeClient, error) {
	var pause backoff
	for {
		c, err := dialStoreOnce(ctx, address)
		if err == nil || errors.Is(err, ErrProtocol) || filelimit.Reached(err) {
			return c, err
		}
		if pause.wait(ctx) != nil {
			return nil, fmt.Errorf("%w: no TCPStore at %s: %w", late(ctx), address, err)
		}
	}
}

func dialStoreOnce(ctx context.Context, address string) (*storeClient, error) {
	d := net.Dialer{Timeout: handshakeTimeout}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := &storeClient{conn: conn.(*net.TCPConn), r: bufio.NewReader(conn)}
	ping, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if err := c.ping(ping); err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

func (c *storeClient) close() { c.conn.Close() }

// call sends a request and lets parse read the reply, both within the context. After an error the
// client is of no more use.
func (c *storeClient) call(ctx context.Context, request []byte, parse func(r *bufio.Reader) error) error {
	interrupt := context.AfterFunc(ctx, func() { c.conn.SetDeadline(time.Now()) })
	defer interrupt()
	_, err := c.conn.Write(request)
	if err == nil && parse != nil {
		err = parse(c.r)
	}
	if err != nil && ctx.Err() != nil {
		return late(ctx)
	}
	return err
}

// ping makes the store known as one.
func (c *storeClient) ping(ctx context.Context) error {
	nonce := rand.Uint32()
	b := ne.AppendUint32([]byte{storeValidate}, storeMagic)
	b = ne.AppendUint32(append(b, storePing), nonce)
	return c.call(ctx, b, func(r *bufio.Reader) error {
		var echo [4]byte
		if _, err := io.ReadFull(r, echo[:]); err != nil {
			return err
		}
		if ne.Uint32(echo[:]) != nonce {
			return fmt.Errorf("%w: the server at %v is no TCPStore", ErrProtocol, c.conn.RemoteAddr())
		}
		return nil
	})
}

// set stores a value. The store sends no reply.
func (c *storeClient) set(ctx context.Context, key string, value []byte) error {
	return c.call(ctx, appendBytes(appendKey([]byte{storeSet}, key), value), nil)
}

// add adds to a number, made as 0, and returns the sum.
func (c *storeClient) add(ctx context.Context, key string, n int64) (sum int64, err error) {
	b := ne.AppendUint64(appendKey([]byte{storeAdd}, key), uint64(n))
	err = c.call(ctx, b, func(r *bufio.Reader) error {
		sum, err = readStoreInt(r)
		return err
	})
	return sum, err
}

// get returns a value, and waits until there is one.
func (c *storeClient) get(ctx context.Context, key string) (value []byte, err error) {
	b := appendKey(ne.AppendUint64([]byte{storeWait}, 1), key)
	if err := c.call(ctx, b, readStoreWake); err != nil {
		return nil, err
	}
	err = c.call(ctx, appendKey([]byte{storeGet}, key), func(r *bufio.Reader) error {
		value, err = readStoreValue(r)
		return err
	})
	return value, err
}

// appendKey appends a user's key, which the protocol puts a slash before.
func appendKey(b []byte, key string) []byte { return appendBytes(b, []byte("/"+key)) }

func appendBytes(b, v []byte) []byte { return append(ne.AppendUint64(b, uint64(len(v))), v...) }

func readStoreInt(r *bufio.Reader) (int64, error) {
	var b [8]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return 0, err
	}
	return int64(ne.Uint64(b[:])), nil
}

func readStoreWake(r *bufio.Reader) error {
	b, err := r.ReadByte()
	if err == nil && b != storeStopWaiting {
		err = fmt.Errorf("%w: TCPStore answers a wait with %d", ErrProtocol, b)
	}
	return err
}

func readStoreValue(r *bufio.Reader) ([]byte, error) {
	n, err := readStoreInt(r)
	if err != nil {
		return nil, err
	}
	if n < 0 || n > maxStoreValue {
		return nil, fmt.Errorf("%w: TCPStore value of %d bytes, at most %d expected", ErrProtocol, uint64(n), maxStoreValue)
	}
	b := make([]byte, n)
	_, err = io.ReadFull(r, b)
	return b, err
}
