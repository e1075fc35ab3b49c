// Light or dark: as the system says, or as was chosen.

import { computed, effect, signal } from "@preact/signals";

export type Choice = "system" | "light" | "dark";

const KEY = "skep-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const systemDark = signal(system.matches);
system.addEventListener("change", (event) => (systemDark.value = event.matches));

const kept = localStorage.getItem(KEY);
/** What was chosen. */
export const choice = signal<Choice>(kept === "light" || kept === "dark" ? kept : "system");
/** What is shown. */
export const theme = computed(() =>
  choice.value === "system" ? (systemDark.value ? "dark" : "light") : choice.value,
);

effect(() => {
  document.documentElement.dataset["theme"] = theme.value;
  localStorage.setItem(KEY, choice.value);
});
