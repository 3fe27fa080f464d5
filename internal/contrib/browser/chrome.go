package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"

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

func browse(ctx context.Context) (tab context.Context, end func(), err error) {
	path := chromium()
	if path == "" {
		return nil, nil, fmt.Errorf("browser: there is no chromium; install one, or name it in EPOCHFENCE_CHROMIUM")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	ctx, endProcess := chromedp.NewExecAllocator(ctx, options...)
	tab, endTab := chromedp.NewContext(ctx)
	end = func() { endTab(); endProcess() }
	if err := chromedp.Do(tab); err != nil {
		end()
		return nil, nil, fmt.Errorf("browser: start %s: %w", path, err)
	}
	return tab, end, nil
}

type look struct {
	width    int64
	dark     bool
	noScript bool
	top      bool // only the part that is visible without scrolling
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

func picture(tab context.Context, url string, l look) ([]byte, error) {
	if err := chromedp.Do(tab, chromedp.Func(l.as), chromedp.Navigate(url)); err != nil {
		return nil, err
	}
	if l.top {
		return chromedp.Run(tab, chromedp.CaptureScreenshot())
	}
	return chromedp.Run(tab, chromedp.FullScreenshot(100))
}
