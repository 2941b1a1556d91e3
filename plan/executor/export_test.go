package executor

import "github.com/weftgo/weft/plan/internal/host"

// OnStep has a function called before each operation that a block of this rank begins.
func (p *Plan) OnStep(f func()) { p.loaded.(*host.Loaded).Step = f }
