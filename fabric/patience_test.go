package fabric

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/weftgo/weft/fabric/internal/provider"
)

// lateEndpoint tells when it is closed.
type lateEndpoint struct {
	provider.Endpoint
	closed chan struct{}
}

func (e lateEndpoint) Close() error {
	close(e.closed)
	return nil
}

// TestPatience: a library that does not return holds nobody past the context, and what it opens then is closed.
func TestPatience(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	release, late := make(chan struct{}), lateEndpoint{closed: make(chan struct{})}
	called := make(chan error)
	go func() {
		_, err := patiently(ctx, func() (provider.Endpoint, error) {
			<-release
			return late, nil
		})
		called <- err
	}()
	cancel()
	if err := <-called; !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled open: %v", err)
	}
	close(release)
	<-late.closed

	if e, err := patiently(t.Context(), func() (provider.Endpoint, error) { return late, nil }); e != late || err != nil {
		t.Errorf("%v, %v", e, err)
	}
}

// TestStarved: an endpoint that turns writes away is given up after tries throughout the time, not after two with a
// pause between them in which the process had no processor.
func TestStarved(t *testing.T) {
	p := &Peer{d: &Domain{free: make([]uint32, 4)}, warm: true}
	for range 10 {
		if p.gone() {
			t.Fatal("two tries were enough")
		}
		p.refused = p.refused.Add(-time.Minute)
	}
	for tries := 10; !p.gone(); tries++ {
		if p.refused = p.refused.Add(-time.Minute); tries > 100 {
			t.Fatal("no number of tries is enough")
		}
	}
}
