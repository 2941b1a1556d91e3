package gpu

import "testing"

// TestPieceOf: pieces of a share are whole vectors, fit into their places, and all blocks have about as much.
func TestPieceOf(t *testing.T) {
	for _, blocks := range []int{1, 3, 66, 99, 132} {
		for _, most := range []int{64, 80, 4 << 10, 5000 &^ 15, mostPiece, 1 << 20} {
			for share := 16; share <= 1<<30; share = share*3&^15 + 16 {
				piece := pieceOf(share, blocks, most)
				if piece%vectorBytes != 0 || piece <= 0 || piece > min(most, mostPiece) {
					t.Fatalf("share of %d, %d blocks, %d at most: a piece of %d", share, blocks, most, piece)
				}
				turns := (share + blocks*piece - 1) / (blocks * piece)
				if waste := turns*blocks*piece - share; turns > 1 && piece > usualPiece && waste > turns*blocks*lineBytes {
					t.Errorf("share of %d, %d blocks, %d at most: pieces of %d leave %d of %d", share, blocks, most, piece,
						waste, share)
				}
			}
		}
	}
}
