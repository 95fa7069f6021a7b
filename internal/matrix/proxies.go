package matrix

import (
	"github.com/retrip/retrip/internal/httptestx"
)

// ConnectTunnel plays an HTTP proxy that opens a tunnel to the address.
func ConnectTunnel(addr string) httptestx.Play {
	return httptestx.Play{
		httptestx.ReadHead,
		httptestx.Write("HTTP/1.1 200 Connection established\r\n\r\n"),
		httptestx.Tunnel(addr),
	}
}

// ConnectStatus plays an HTTP proxy that answers CONNECT with the code.
func ConnectStatus(code int, header ...string) httptestx.Play {
	return httptestx.Play{httptestx.ReadHead, httptestx.Respond(code, "", header...)}
}

// socksGreeting reads the client's methods (version 5, one of them, none
// needed) and its request for an IPv4 address (RFC 1928 §4).
func socksGreeting() httptestx.Play {
	return httptestx.Play{
		httptestx.ReadBytes(3),
		httptestx.Write("\x05\x00"),
		httptestx.ReadBytes(10),
	}
}

// SOCKSTunnel plays a SOCKS5 proxy that opens a tunnel to the address.
func SOCKSTunnel(addr string) httptestx.Play {
	return append(socksGreeting(),
		httptestx.Write("\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x00"),
		httptestx.Tunnel(addr))
}

// SOCKSReply plays a SOCKS5 proxy that answers with a reply code: 5 is
// "connection refused".
func SOCKSReply(code byte) httptestx.Play {
	return append(socksGreeting(),
		httptestx.Write("\x05"+string([]byte{code})+"\x00\x01\x00\x00\x00\x00\x00\x00"),
		httptestx.FIN)
}
