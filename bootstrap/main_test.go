package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// childVariable makes the test binary run as one rank of a process test.
const childVariable = "WEFT_BOOTSTRAP_TEST_CHILD"

func TestMain(m *testing.M) {
	if role := os.Getenv(childVariable); role != "" {
		if err := runChild(role); err != nil {
			fmt.Println("error", describeError(err))
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// testTimeout bounds every test's waits; none comes near it unless something hangs.
const testTimeout = 30 * time.Second

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// dialAll runs dial for every rank at once and returns the results by rank.
func dialAll(size int, dial func(rank int) (Bootstrap, error)) ([]Bootstrap, []error) {
	ranks, errs := make([]Bootstrap, size), make([]error, size)
	var wg sync.WaitGroup
	for r := range size {
		wg.Go(func() { ranks[r], errs[r] = dial(r) })
	}
	wg.Wait()
	return ranks, errs
}

// mustDialAll is dialAll for joins that succeed. The ranks are closed when the test ends.
func mustDialAll(t testing.TB, size int, dial func(rank int) (Bootstrap, error)) []Bootstrap {
	t.Helper()
	ranks, errs := dialAll(size, dial)
	t.Cleanup(func() { closeAll(ranks) })
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return ranks
}

func closeAll(ranks []Bootstrap) {
	var wg sync.WaitGroup
	for _, b := range ranks {
		if b != nil {
			wg.Go(func() { b.Close() })
		}
	}
	wg.Wait()
}

// onAll runs f for every rank at once and returns the errors by rank.
func onAll(ranks []Bootstrap, f func(b Bootstrap) error) []error {
	errs := make([]error, len(ranks))
	var wg sync.WaitGroup
	for r, b := range ranks {
		wg.Go(func() { errs[r] = f(b) })
	}
	wg.Wait()
	return errs
}

// freeAddress is a loopback address that nothing listens at. The port lies below those that the
// system gives away, so that no other connection takes it meanwhile.
func freeAddress(t testing.TB) string {
	t.Helper()
	for range 100 {
		addr := onThisHost(fmt.Sprint(t.Name(), os.Getpid(), addressCounter()))
		if ln, err := net.Listen("tcp", addr); err == nil {
			ln.Close()
			return addr
		}
	}
	t.Fatal("no free port")
	return ""
}

var (
	addressMutex sync.Mutex
	addressCount int
)

func addressCounter() int {
	addressMutex.Lock()
	defer addressMutex.Unlock()
	addressCount++
	return addressCount
}

// wantPeer checks that err blames a rank for a reason.
func wantPeer(t testing.TB, err error, rank int, reason error) {
	t.Helper()
	pe, ok := errors.AsType[*PeerError](err)
	if !ok || pe.Rank != rank || !errors.Is(err, reason) {
		t.Errorf("got error %v; want one that blames rank %d for %q", err, rank, reason)
	}
}
