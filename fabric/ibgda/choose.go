package ibgda

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
)

// ErrInvalid is wrapped by errors of variables that hold something else than they may.
var ErrInvalid = errors.New("ibgda: invalid variable")

// Way is how kernels reach ranks on other hosts.
type Way int

// Ways.
const (
	Proxy    Way = iota // triggers, which a proxy on the host carries out
	Hardware            // queue pairs of a network card
	Software            // queue pairs of package softnic's card
)

func (w Way) String() string {
	switch w {
	case Proxy:
		return "proxy"
	case Hardware:
		return "card"
	case Software:
		return "software"
	}
	return fmt.Sprintf("way %d", int(w))
}

// Variables of the environment.
const (
	UseVariable = "MSCCLPP_EP_USE_IBGDA"
	NICVariable = "WEFT_NIC"
)

const software = "software"

// Choose reads the variables. It has open open a card only if MSCCLPP_EP_USE_IBGDA is true and WEFT_NIC is not
// "software": the card that WEFT_NIC names, or with "" any. The error of open says in a sentence why kernels can drive
// no card here. They then push to the proxy, and the log, if there is one, says why; but a card that is named must
// open.
func Choose(getenv func(string) string, open func(name string) error, log *slog.Logger) (Way, error) {
	use := false
	if text := getenv(UseVariable); text != "" {
		var err error
		if use, err = strconv.ParseBool(text); err != nil {
			return Proxy, fmt.Errorf("%w: %s=%s: set it to 1 or 0", ErrInvalid, UseVariable, text)
		}
	}
	name := getenv(NICVariable)
	switch {
	case name == software:
		return Software, nil
	case !use && name != "":
		return Proxy, fmt.Errorf("%w: %s=%s: set it to %s, or %s to 1 as well", ErrInvalid, NICVariable, name, software,
			UseVariable)
	case !use:
		return Proxy, nil
	}
	err := open(name)
	switch {
	case err == nil:
		return Hardware, nil
	case name != "":
		return Proxy, fmt.Errorf("%w: %s=%s: %w", ErrInvalid, NICVariable, name, err)
	}
	if log != nil {
		log.LogAttrs(context.Background(), slog.LevelWarn, "kernels push to the proxy's ring: no card can be driven",
			slog.String("variable", UseVariable), slog.String("reason", err.Error()))
	}
	return Proxy, nil
}
