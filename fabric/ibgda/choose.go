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
	Card                // queue pairs of a network card
	Software            // queue pairs of package softnic's card
)

func (w Way) String() string {
	switch w {
	case Proxy:
		return "proxy"
	case Card:
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

// Choose reads the variables. It asks card, whose error says in a sentence why kernels can drive no card here, only
// if MSCCLPP_EP_USE_IBGDA is true and WEFT_NIC does not decide. The log may be nil.
func Choose(getenv func(string) string, card func() error, log *slog.Logger) (Way, error) {
	use := false
	if text := getenv(UseVariable); text != "" {
		var err error
		if use, err = strconv.ParseBool(text); err != nil {
			return Proxy, fmt.Errorf("%w: %s=%s: set it to 1 or 0", ErrInvalid, UseVariable, text)
		}
	}
	switch text := getenv(NICVariable); text {
	case "":
	case "software":
		return Software, nil
	default:
		return Proxy, fmt.Errorf("%w: %s=%s: set it to software, or not at all", ErrInvalid, NICVariable, text)
	}
	if !use {
		return Proxy, nil
	}
	if err := card(); err != nil {
		if log != nil {
			log.LogAttrs(context.Background(), slog.LevelWarn, "kernels push to the proxy's ring: no card can be driven",
				slog.String("variable", UseVariable), slog.String("reason", err.Error()))
		}
		return Proxy, nil
	}
	return Card, nil
}
