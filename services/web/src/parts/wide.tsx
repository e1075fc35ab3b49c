// A part that scrolls sideways by itself where the window is too narrow for it.

import type { ComponentChildren } from "preact";

/** It can be reached by the keyboard, so that it can be scrolled by it. */
export function Wide({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    <div class="wide" tabIndex={0} role="group" aria-label={label}>
      {children}
    </div>
  );
}
