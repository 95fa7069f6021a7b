// Package layers holds tests of retrip together with round trippers of other modules.
package layers
