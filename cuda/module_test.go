package cuda

import (
	"errors"
	"strings"
	"testing"
	"unsafe"

	"github.com/weftgo/weft/cuda/internal/sys"
	"github.com/weftgo/weft/internal/dl"
)

// TestLoadLog: what the driver's own compiler says of bad PTX is in the error, and the image that
// it reads ends with a NUL.
func TestLoadLog(t *testing.T) {
	const log = "ptxas application ptx input, line 7; fatal: syntax error"
	table := new(sys.Table)
	table.Complete()
	table.ModuleLoadDataEx = func(_ sys.Context, _ *sys.Module, image *byte, n uint32, options *int32,
		values *sys.JITValues,
	) sys.Result {
		if dl.GoString(image) != ".version bad" || n != 2 || *options != sys.JITErrorLogBuffer {
			t.Errorf("image %q with %d options", dl.GoString(image), n)
		}
		copy(unsafe.Slice(values.ErrorLog, values.ErrorLogSize), log)
		return sys.Result(ErrInvalidPTX)
	}
	c := &Context{driver: &Driver{table: table}, table: table}
	image := []byte(".version bad, and more")
	_, err := c.LoadModule(image[:12])
	if !errors.Is(err, ErrInvalidPTX) || !strings.Contains(err.Error(), log) {
		t.Errorf("error %v", err)
	}
	if string(image) != ".version bad, and more" {
		t.Errorf("the caller's image became %q", image)
	}
}
