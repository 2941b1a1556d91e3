package bootstrap

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// pmiClient speaks PMI-1, the protocol between MPICH's process manager and the processes it starts:
// lines of key=value pairs on an inherited socket.
type pmiClient struct {
	conn net.Conn
	r    *bufio.Reader
}

// maxPMILine bounds a line from the process manager.
const maxPMILine = 16 << 10

// pmiSession is the state of the session on one descriptor. It is remembered, since a process has
// one session: a further job of the same ranks meets at the same address under the same secret.
type pmiSession struct {
	sync.Mutex
	id ID
}

// pmiSessions holds a *pmiSession for each descriptor, by its number.
var pmiSessions sync.Map

// exchangeThroughPMI publishes rank 0's ID to the other ranks through the process manager on file
// descriptor fd. The session is finished afterwards, since a process that ends inside one counts as
// failed; so a process that itself uses MPI needs WEFT_ADDRESS instead.
func exchangeThroughPMI(ctx context.Context, fd string, rank int, oneHost bool, iface string) (ID, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultJoinTimeout)
		defer cancel()
	}
	v, _ := pmiSessions.LoadOrStore(fd, new(pmiSession))
	session := v.(*pmiSession)
	session.Lock()
	defer session.Unlock()
	if !session.id.IsZero() {
		return session.id, nil
	}
	n, err := strconv.ParseUint(fd, 10, 31)
	if err != nil {
		return ID{}, fmt.Errorf("join: %w: PMI_FD is %q, not a number", ErrEnvironment, fd)
	}
	f := os.NewFile(uintptr(n), "process manager")
	conn, err := net.FileConn(f)
	f.Close()
	if err != nil {
		return ID{}, fmt.Errorf("join: %w: PMI_FD %s: %w", ErrEnvironment, fd, err)
	}
	defer conn.Close()
	c := &pmiClient{conn: conn, r: bufio.NewReaderSize(conn, maxPMILine)}
	id, err := c.exchange(ctx, rank, oneHost, iface)
	if err != nil {
		return ID{}, fmt.Errorf("join: process manager: %w", err)
	}
	session.id = id
	return id, nil
}

func (c *pmiClient) exchange(ctx context.Context, rank int, oneHost bool, iface string) (id ID, err error) {
	interrupt := context.AfterFunc(ctx, func() { c.conn.SetDeadline(time.Now()) })
	defer interrupt()
	if _, err = c.call("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init"); err != nil {
		return ID{}, err
	}
	reply, err := c.call("cmd=get_my_kvsname", "my_kvsname")
	if err != nil {
		return ID{}, err
	}
	kvs := reply["kvsname"]
	const key = "weft-id"
	if rank == 0 {
		var opts []IDOption
		if iface != "" {
			opts = append(opts, OnInterface(iface))
		} else if oneHost {
			opts = append(opts, OnLoopback())
		}
		if id, err = NewID(opts...); err != nil {
			return ID{}, err
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, id.Release())
			}
		}()
		if _, err = c.call("cmd=put kvsname="+kvs+" key="+key+" value="+id.String(), "put_result"); err != nil {
			return ID{}, err
		}
	}
	if _, err = c.call("cmd=barrier_in", "barrier_out"); err != nil {
		return ID{}, err
	}
	if rank != 0 {
		if reply, err = c.call("cmd=get kvsname="+kvs+" key="+key, "get_result"); err != nil {
			return ID{}, err
		}
		if id, err = ParseID(reply["value"]); err != nil {
			return ID{}, err
		}
	}
	_, err = c.call("cmd=finalize", "finalize_ack")
	return id, err
}

// call sends one line and returns the pairs of the reply, which must be the command want and no
// failure.
func (c *pmiClient) call(line, want string) (map[string]string, error) {
	if _, err := c.conn.Write([]byte(line + "\n")); err != nil {
		return nil, err
	}
	answer, err := c.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return nil, fmt.Errorf("%w: line longer than %d bytes", ErrProtocol, maxPMILine)
	}
	if err != nil {
		return nil, unexpected(err)
	}
	return parsePMI(string(answer), want)
}

// parsePMI parses a line of key=value pairs. The pair msg, which may contain spaces, comes last
// where it comes.
func parsePMI(line, want string) (map[string]string, error) {
	pairs := make(map[string]string)
	for field := range strings.FieldsSeq(line) {
		if k, v, ok := strings.Cut(field, "="); ok {
			if _, again := pairs[k]; !again {
				pairs[k] = v
			}
		}
	}
	if pairs["cmd"] != want {
		return nil, fmt.Errorf("%w: process manager says %q where %s is due", ErrProtocol,
			clip(strings.TrimSpace(line)), want)
	}
	if rc, ok := pairs["rc"]; ok && rc != "0" {
		return nil, fmt.Errorf("process manager refuses: %q", clip(strings.TrimSpace(line)))
	}
	return pairs, nil
}
