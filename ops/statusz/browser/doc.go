// Command browser takes pictures of the status page, of a group in memory that has seen
// a takeover, a halt and dead letters:
//
//	go run ./ops/statusz/browser -o docs
//
// Its tests look at the page in headless Chromium, which has to be there: chromium,
// chromium-browser, google-chrome or what EPOCHFENCE_CHROMIUM names. It is a module of its
// own, so that what drives a browser stays out of the page's.
package main
