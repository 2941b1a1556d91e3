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
		Short: "Examine this machine, and say what each finding means for Weft",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m := doctor.Collect(doctor.System(version()))
			if asJSON {
				return doctor.JSON(cmd.OutOrStdout(), m)
			}
			return doctor.Table(cmd.OutOrStdout(), doctor.Findings(m), terminal.Color(os.Stdout))
		},
	}
	describe(cmd, "doctor")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}
