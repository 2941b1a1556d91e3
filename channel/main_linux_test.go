package channel_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/weftgo/weft/internal/ranktest/processes"
)

func TestMain(m *testing.M) {
	if processes.Main(map[string]func() processes.Part{"end": func() processes.Part { return &end{} }}) {
		return
	}
	goleak.VerifyTestMain(m)
}
