package cuda_test

import (
	"errors"
	"os"
	"testing"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
)

// TestExportDMABuf makes dma-bufs of mapped and of plain memory: of whole pages, in which the bytes begin at an offset.
func TestExportDMABuf(t *testing.T) {
	m, d := open(t, cudatest.Config{Attributes: map[cuda.Attribute]int{cuda.DMABuf: 1}})
	c := primary(t, d, 0)
	v, err := c.AllocVirtual(1<<20, cuda.AllocationOptions{Share: cuda.ShareFD, RDMA: true})
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	for _, at := range []int{0, 1, page - 1, page + 100} {
		file, offset, err := c.ExportDMABuf(v.Pointer().Add(at), 3*page)
		if err != nil {
			t.Fatal(err)
		}
		if offset != at%page {
			t.Errorf("%d bytes behind a page: offset %d", at%page, offset)
		}
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, _, err := c.ExportDMABuf(v.Pointer(), 0); !errors.Is(err, cuda.ErrInvalidValue) {
		t.Errorf("of no bytes: %v", err)
	}
	if _, _, err := c.ExportDMABuf(v.Pointer(), v.Size()+1); !errors.Is(err, cuda.ErrInvalidValue) {
		t.Errorf("behind the end: %v", err)
	}
	if err := errors.Join(c.FlushRDMA(), v.Close()); err != nil {
		t.Error(err)
	}
	if n := m.Calls("cuFlushGPUDirectRDMAWrites"); n != 1 {
		t.Errorf("%d flushes", n)
	}
}

// TestRDMAUnneeded: a device without dma-bufs refuses them, and one that orders what adapters write flushes nothing.
func TestRDMAUnneeded(t *testing.T) {
	m, d := open(t, cudatest.Config{Attributes: map[cuda.Attribute]int{cuda.GPUDirectRDMAOrdering: 200}})
	c := primary(t, d, 0)
	a, err := c.Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.ExportDMABuf(a.Pointer(), 4096); !errors.Is(err, cuda.ErrNotSupported) {
		t.Errorf("without dma-bufs: %v", err)
	}
	if err := errors.Join(c.FlushRDMA(), a.Close()); err != nil {
		t.Error(err)
	}
	if n := m.Calls("cuFlushGPUDirectRDMAWrites"); n != 0 {
		t.Errorf("%d flushes", n)
	}
}
