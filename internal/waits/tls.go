package waits

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
)

// IsTLS reports whether err comes from a TLS handshake that cannot succeed: the other side does not
// speak TLS, or one side does not accept the certificate of the other.
func IsTLS(err error) bool {
	var (
		record *tls.RecordHeaderError
		value  tls.RecordHeaderError
		verify *tls.CertificateVerificationError
		alert  tls.AlertError
		signer x509.UnknownAuthorityError
		host   x509.HostnameError
		bad    x509.CertificateInvalidError
		remote *net.OpError
	)
	return errors.As(err, &record) || errors.As(err, &value) || errors.As(err, &verify) || errors.As(err, &alert) ||
		errors.As(err, &signer) || errors.As(err, &host) || errors.As(err, &bad) ||
		errors.As(err, &remote) && remote.Op == "remote error" // crypto/tls: an alert from the other side
}
