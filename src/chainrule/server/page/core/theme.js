/** Light and dark: as the system has it, or as chosen. */

const STORED = "chainrule-theme";
const CHOICES = ["auto", "light", "dark"];

/** The chosen theme: auto, light or dark. */
export function chosenTheme() {
  const stored = localStorage.getItem(STORED);
  return CHOICES.includes(stored) ? stored : "auto";
}

/** Use a theme and remember it. */
export function applyTheme(theme) {
  localStorage.setItem(STORED, theme);
  document.documentElement.dataset.theme = theme;
}

/** The theme after this one. */
export function nextTheme(theme) {
  return CHOICES[(CHOICES.indexOf(theme) + 1) % CHOICES.length];
}
