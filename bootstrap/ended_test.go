package bootstrap

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// ledgerOfThree is a launcher's file of a job of three, of which one rank has ended.
func ledgerOfThree(t *testing.T, ended int) string {
	path := filepath.Join(t.TempDir(), "ended")
	if err := os.WriteFile(path, fmt.Appendf(nil, "3\n%d exit status 7\n", ended), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// wantEnded is err as ranks get it that wait for one which the file says has ended.
func wantEnded(t *testing.T, err error, ended int) {
	t.Helper()
	wantPeer(t, err, ended, ErrDied)
	if err != nil && !strings.Contains(err.Error(), "exit status 7") {
		t.Errorf("%v does not say how rank %d ended", err, ended)
	}
}

// TestEndedBeforeStore has a rank end before it comes to the store, or to one that is gone. The
// others are told how.
func TestEndedBeforeStore(t *testing.T) {
	for name, c := range map[string]struct {
		ended int
		store string
	}{
		"rank 2":           {2, startStore(t)},
		"rank 0":           {0, startStore(t)},
		"with the store's": {0, freeAddress(t)},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, path := testContext(t), ledgerOfThree(t, c.ended)
			_, errs := dialAll(3, func(rank int) (Bootstrap, error) {
				if rank == c.ended {
					return nil, nil
				}
				e, err := Detect(environ(map[string]string{
					"WEFT_RANK": strconv.Itoa(rank), "WEFT_SIZE": "3", "WEFT_STORE": c.store, EndedVariable: path,
				}))
				if err != nil {
					return nil, err
				}
				return e.Dial(ctx)
			})
			for rank, err := range errs {
				if rank != c.ended {
					wantEnded(t, err, c.ended)
				}
			}
		})
	}
}

// TestEndedBeforeID has a rank end before it comes to where an id says. A process that the launcher
// gave the same number is told how; one with a number of its own reads nothing into the launcher's.
func TestEndedBeforeID(t *testing.T) {
	id, err := NewID(OnLoopback())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("WEFT_SIZE", "3")
	t.Setenv(EndedVariable, ledgerOfThree(t, 2))
	dial := func(ctx context.Context, number string) error {
		t.Setenv("WEFT_RANK", number)
		_, err := id.Dial(ctx, 1, 3)
		return err
	}
	wantEnded(t, dial(testContext(t), "1"), 2)
	short, cancel := context.WithTimeout(t.Context(), 3*endedGrace)
	defer cancel()
	wantPeer(t, dial(short, "0"), 0, ErrTimeout)
	_, err = id.Dial(testContext(t), 0, 3)
	wantEnded(t, err, 2)
}
