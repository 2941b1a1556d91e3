package executor

import (
	"sync"

	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/internal/launch"
)

// verdicts are those of plans that were verified last in this process, by content: ranks of one process, and
// executors that follow each other, load the same plans. A verdict depends on nothing else.
var verdicts struct {
	sync.Mutex
	of    map[launch.Key]func() *plan.Verdict
	order []launch.Key
}

// keptVerdicts is how many are kept.
const keptVerdicts = 64

// verdictOf verifies a plan, unless that was done before.
func verdictOf(p *launch.Plan) *plan.Verdict {
	verdicts.Lock()
	verify := verdicts.of[p.Key]
	if verify == nil {
		file := p.File
		verify = sync.OnceValue(func() *plan.Verdict { return plan.Verify(file) })
		if verdicts.of == nil {
			verdicts.of = make(map[launch.Key]func() *plan.Verdict)
		}
		verdicts.of[p.Key] = verify
		verdicts.order = append(verdicts.order, p.Key)
		if n := len(verdicts.order); n > keptVerdicts {
			delete(verdicts.of, verdicts.order[0])
			verdicts.order = verdicts.order[1:]
		}
	}
	verdicts.Unlock()
	return verify()
}
