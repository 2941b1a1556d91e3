package cuda_test

import (
	"errors"
	"io"
	"testing"

	"go.uber.org/goleak"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open gives a test a machine, which must be found in order at its end.
func open(t *testing.T, c cudatest.Config) (*cudatest.Machine, *cuda.Driver) {
	t.Helper()
	m, d := openFaulty(t, c)
	t.Cleanup(func() {
		if err := m.Check(); err != nil {
			t.Errorf("the machine at the end: %v", err)
		}
	})
	return m, d
}

// openFaulty is open for tests that do wrong on purpose.
func openFaulty(t *testing.T, c cudatest.Config) (*cudatest.Machine, *cuda.Driver) {
	t.Helper()
	m := cudatest.New(c)
	d, err := m.Open()
	if errors.Is(err, cuda.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m, d
}

func device(t *testing.T, d *cuda.Driver, ordinal int) *cuda.Device {
	t.Helper()
	dev, err := d.Device(ordinal)
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// keep closes what was made at the end of the test, last first.
func keep[T io.Closer](t *testing.T, v T, err error) T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := v.Close(); err != nil {
			t.Errorf("the second close: %v", err)
		}
	})
	return v
}

func primary(t *testing.T, d *cuda.Driver, ordinal int) *cuda.Context {
	t.Helper()
	c, err := device(t, d, ordinal).Primary()
	return keep(t, c, err)
}

func newStream(t *testing.T, c *cuda.Context) *cuda.Stream {
	t.Helper()
	s, err := c.NewStream(cuda.StreamOptions{})
	return keep(t, s, err)
}

func newEvent(t *testing.T, c *cuda.Context, o cuda.EventOptions) *cuda.Event {
	t.Helper()
	e, err := c.NewEvent(o)
	return keep(t, e, err)
}

func alloc(t *testing.T, c *cuda.Context, size int) *cuda.Memory {
	t.Helper()
	m, err := c.Alloc(size)
	return keep(t, m, err)
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wants checks what an error is.
func wants(t *testing.T, err error, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("error %v, want %v", err, target)
	}
}
