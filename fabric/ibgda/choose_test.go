package ibgda_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/weftgo/weft/fabric/ibgda"
)

func TestChoose(t *testing.T) {
	none := errors.New("no mlx5 card was found")
	for _, tt := range []struct {
		use, nic string
		card     error
		want     ibgda.Way
		log, err string
	}{
		{want: ibgda.Proxy},
		{use: "0", want: ibgda.Proxy},
		{use: "1", want: ibgda.Hardware},
		{use: "1", nic: "mlx5_3", want: ibgda.Hardware},
		{use: "true", card: none, want: ibgda.Proxy, log: none.Error()},
		{nic: "software", want: ibgda.Software},
		{use: "0", nic: "software", want: ibgda.Software},
		{use: "1", nic: "software", card: none, want: ibgda.Software},
		{use: "yes", err: "MSCCLPP_EP_USE_IBGDA=yes: set it to 1 or 0"},
		{nic: "mlx5_0", err: "WEFT_NIC=mlx5_0: set it to software, or MSCCLPP_EP_USE_IBGDA to 1 as well"},
		{use: "1", nic: "mlx5_0", card: none, err: "WEFT_NIC=mlx5_0: " + none.Error()},
		{use: "2", nic: "software", err: "set it to 1 or 0"},
	} {
		var text bytes.Buffer
		asked := false
		env := map[string]string{ibgda.UseVariable: tt.use, ibgda.NICVariable: tt.nic}
		got, err := ibgda.Choose(func(name string) string { return env[name] }, func(name string) error {
			if asked = true; name != tt.nic {
				t.Errorf("%+v: asked for card %q", tt, name)
			}
			return tt.card
		}, slog.New(slog.NewTextHandler(&text, nil)))
		if tt.err != "" {
			if !errors.Is(err, ibgda.ErrInvalid) || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%+v: %v", tt, err)
			}
			continue
		}
		if err != nil || got != tt.want || asked != (tt.nic != "software" && (tt.use == "1" || tt.use == "true")) {
			t.Errorf("%+v: %s, %v, asked %v", tt, got, err, asked)
		}
		lines := strings.Count(text.String(), "\n")
		if tt.log == "" && lines != 0 || tt.log != "" && (lines != 1 || !strings.Contains(text.String(), tt.log)) {
			t.Errorf("%+v: the log has %q", tt, text.String())
		}
	}
	if _, err := ibgda.Choose(func(string) string { return "" }, nil, nil); err != nil {
		t.Error(err)
	}
}
