// Command browser takes pictures of the status page. The page shows a group in memory after a
// takeover, a halt and dead letters:
//
//	go run ./internal/contrib/browser -o docs
//
// Its tests need headless Chromium: chromium, chromium-browser, google-chrome or the path in
// EPOCHFENCE_CHROMIUM. It is a separate module, so that the status page does not depend on the
// browser's driver.
package main
