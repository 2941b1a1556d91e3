package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft/cmd/weft/internal/doctor"
	"github.com/weftgo/weft/cmd/weft/internal/terminal"
)

func newDoctor() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine offers, and what that means",
		Long: `Say what this machine offers to Weft, and what each finding means.

Each line begins with ok (as it should be), -- (works, or is not needed) or !!
(something will not work). CUDA's driver and NVRTC are loaded to be asked, which takes
seconds where there are many GPUs; nothing is changed. With --json, one object with
stable keys. The exit status is 0 whatever is found.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m := doctor.Collect(doctor.System(version()))
			if asJSON {
				return doctor.JSON(cmd.OutOrStdout(), m)
			}
			return doctor.Table(cmd.OutOrStdout(), doctor.Findings(m), terminal.Color(os.Stdout))
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}
