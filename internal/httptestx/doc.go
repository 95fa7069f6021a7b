// Package httptestx is retrip's test kit: an origin on a real socket that
// fails at a chosen byte and counts what reached it, request bodies that count
// what is done with them, a checker of the http.RoundTripper contract, a leak
// check, and a network in memory for testing/synctest.
//
// # The origin
//
// An [Origin] plays a [Script]: for every turn (a new connection, or the first
// byte of another request on a kept one) the script hands out a [Play], a list
// of [Step] values that read, write and end the connection in the order given:
//
//	Play{ReadAll, RST}                        // read the whole request, reset
//	Play{ReadHead, ReadBody(1 << 20), FIN}    // close after 1 MiB of the body
//	Play{ReadAll, Write("HTTP/1.1 20"), FIN}  // half a status line
//
// What arrived is counted by the origin's [Ledger]: connections, header blocks,
// complete requests (effects), bytes, and every request with a hash of its body.
package httptestx
