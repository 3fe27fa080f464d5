package browser

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

func chromium() string {
	if path := os.Getenv("EPOCHFENCE_CHROMIUM"); path != "" {
		return path
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// browse starts a browser, and returns a tab of it.
func browse(t *testing.T) context.Context {
	t.Helper()
	path := chromium()
	if path == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("there is no chromium (Debian package chromium), and CI is set")
		}
		t.Skip("there is no chromium (Debian package chromium)")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	ctx, endProcess := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(endProcess)
	tab, endTab := chromedp.NewContext(ctx)
	t.Cleanup(endTab)
	if err := chromedp.Do(tab); err != nil {
		t.Fatalf("start %s: %v", path, err)
	}
	return tab
}

type look struct {
	width    int64
	dark     bool
	noScript bool
}

func (l look) as(ctx context.Context, t *chromedp.Target) error {
	scheme := "light"
	if l.dark {
		scheme = "dark"
	}
	_, err := cdp.Call(ctx, t, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: l.noScript})
	if err != nil {
		return err
	}
	_, err = cdp.Call(ctx, t, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: l.width, Height: 800, DeviceScaleFactor: 1, Mobile: l.width < 600,
	})
	if err != nil {
		return err
	}
	_, err = cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	return err
}
