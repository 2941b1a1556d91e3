package bootstrap

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
)

// processManager answers the PMI-1 lines of size clients.
type processManager struct {
	mu     sync.Mutex
	values map[string]string
	inside int
	open   chan struct{}
	size   int
}

func (pm *processManager) serve(conn net.Conn) error {
	r := bufio.NewScanner(conn)
	for r.Scan() {
		pairs := map[string]string{}
		for f := range strings.FieldsSeq(r.Text()) {
			k, v, _ := strings.Cut(f, "=")
			pairs[k] = v
		}
		switch pairs["cmd"] {
		case "init":
			fmt.Fprintln(conn, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0")
		case "get_my_kvsname":
			fmt.Fprintln(conn, "cmd=my_kvsname kvsname=kvs_7_0")
		case "put":
			pm.mu.Lock()
			pm.values[pairs["kvsname"]+"/"+pairs["key"]] = pairs["value"]
			pm.mu.Unlock()
			fmt.Fprintln(conn, "cmd=put_result rc=0 msg=success")
		case "barrier_in":
			pm.mu.Lock()
			if pm.inside++; pm.inside == pm.size {
				close(pm.open)
			}
			pm.mu.Unlock()
			<-pm.open
			fmt.Fprintln(conn, "cmd=barrier_out")
		case "get":
			pm.mu.Lock()
			v, ok := pm.values[pairs["kvsname"]+"/"+pairs["key"]]
			pm.mu.Unlock()
			if ok {
				fmt.Fprintf(conn, "cmd=get_result rc=0 msg=success value=%s\n", v)
			} else {
				fmt.Fprintln(conn, "cmd=get_result rc=-1 msg=key_not_found value=unknown")
			}
		case "finalize":
			fmt.Fprintln(conn, "cmd=finalize_ack")
			return nil
		default:
			return fmt.Errorf("unexpected line %q", r.Text())
		}
	}
	return fmt.Errorf("client ended without finalize: %v", r.Err())
}

// pmiSocket returns the number of a descriptor connected to conn.
func pmiSocket(t *testing.T) (fd string, conn net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if conn, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	f, err := client.(*net.TCPConn).File()
	if err != nil {
		t.Skip("descriptors can't be handed down here:", err)
	}
	handedDown = append(handedDown, f)
	return fmt.Sprint(f.Fd()), conn
}

// handedDown keeps the collector from closing what stands for inherited descriptors: the code under
// test closes their numbers.
var handedDown []*os.File

func TestPMI(t *testing.T) {
	defer pmiSessions.Clear() // the numbers of its descriptors will be used again
	const size = 3
	pm := &processManager{values: map[string]string{}, open: make(chan struct{}), size: size}
	served := make(chan error, size)
	fds := make([]string, size)
	for r := range fds {
		fd, conn := pmiSocket(t)
		fds[r] = fd
		go func() {
			defer conn.Close()
			served <- pm.serve(conn)
		}()
	}
	ctx := testContext(t)
	dial := func(rank int) (Bootstrap, error) {
		e, err := Detect(environ(map[string]string{
			"PMI_RANK": fmt.Sprint(rank), "PMI_SIZE": fmt.Sprint(size), "PMI_FD": fds[rank],
			"MPI_LOCALRANKID": fmt.Sprint(rank), "MPI_LOCALNRANKS": fmt.Sprint(size),
		}))
		if err != nil {
			return nil, err
		}
		return e.Dial(ctx)
	}
	first := mustDialAll(t, size, dial)
	for range size {
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
	// The session is over; a further job meets at the same place, whether the first still lives or
	// not.
	second := mustDialAll(t, size, dial)
	closeAll(first)
	closeAll(second)
	third := mustDialAll(t, size, dial)
	for r, err := range onAll(third, func(b Bootstrap) error { return b.Barrier(ctx) }) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

func TestPMIErrors(t *testing.T) {
	ctx := testContext(t)
	for _, fd := range []string{"x", "-1", "987654"} {
		if _, err := exchangeThroughPMI(ctx, fd, 1, true, ""); !errors.Is(err, ErrEnvironment) {
			t.Errorf("descriptor %s: %v", fd, err)
		}
	}
	for _, answer := range []string{
		"cmd=response_to_init rc=-1\n", "cmd=something\n",
		strings.Repeat("x", 2*maxPMILine), "",
	} {
		fd, conn := pmiSocket(t)
		go func() {
			defer conn.Close()
			bufio.NewReader(conn).ReadString('\n')
			fmt.Fprint(conn, answer)
		}()
		if _, err := exchangeThroughPMI(ctx, fd, 1, true, ""); err == nil {
			t.Errorf("%.40q is accepted", answer)
		}
	}
}

func FuzzPMI(f *testing.F) {
	f.Add("cmd=get_result rc=0 msg=success value=weft1-x\n")
	f.Add("cmd=get_result rc=-1 msg=key not found\n")
	f.Add("=")
	f.Fuzz(func(t *testing.T, line string) {
		pairs, err := parsePMI(line, "get_result")
		if err == nil && pairs["cmd"] != "get_result" {
			t.Fatal("accepted another command")
		}
	})
}
