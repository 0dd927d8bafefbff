/** English and Chinese: every text of the interface is in a dictionary, shared ones here, others with their view. */

export const LANGUAGES = { en: "English", zh: "中文" };

const SHARED = {
  en: {
    skip: "Skip to the content",
    views: "Views",
    run: "Run",
    runs: "Runs",
    text: "Text",
    show: "Show",
    working: "Working…",
    loading: "The runs are being read…",
    ready: "Ready",
    light: "Light",
    dark: "Dark",
    theme: "Theme",
    themeAuto: "as the system",
    language: "Language",
    save: "Save this view",
    saved: "Saved as {name}",
    key: "API key",
    keyAsk: "This server asks for an API key. It is kept until this tab is closed.",
    keyUse: "Use this key",
    cancel: "Cancel",
    close: "Close",
    noRun: "None of the served runs can do this. {how}",
    lost: "The server does not answer. Is it still running?",
    bits: "bits",
    probability: "probability",
    rank: "rank",
    entropy: "entropy",
    instead: "Most probable here",
    savedFrom: "Saved from {address}",
    retry: "Try again",
    unnormalised: "This model gives scores that do not sum to one, so bits are no code length.",
  },
  zh: {
    skip: "跳到内容",
    views: "视图",
    run: "模型",
    runs: "模型",
    text: "文本",
    show: "显示",
    working: "计算中……",
    loading: "正在读取模型……",
    ready: "完成",
    light: "浅色",
    dark: "深色",
    theme: "主题",
    themeAuto: "跟随系统",
    language: "语言",
    save: "保存此视图",
    saved: "已保存为 {name}",
    key: "API 密钥",
    keyAsk: "此服务器需要 API 密钥。密钥只保留到关闭本标签页为止。",
    keyUse: "使用此密钥",
    cancel: "取消",
    close: "关闭",
    noRun: "所提供的模型都不支持此功能。{how}",
    lost: "服务器没有响应。它还在运行吗？",
    bits: "比特",
    probability: "概率",
    rank: "名次",
    entropy: "熵",
    instead: "此处最可能的词元",
    savedFrom: "保存自 {address}",
    retry: "重试",
    unnormalised: "此模型给出的分数之和不为 1，因此这里的比特不是码长。",
  },
};

const STORED = "chainrule-language";

/** The language that was chosen, or that of the browser. */
export function chosenLanguage() {
  const stored = localStorage.getItem(STORED);
  if (stored in LANGUAGES) return stored;
  return navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
}

/** Remember a language. */
export function chooseLanguage(language) {
  localStorage.setItem(STORED, language);
}

/** t("key", {name: value}) in a language: from the given dictionary, else from the shared one. */
export function translator(language, words = {}) {
  const known = { ...SHARED[language], ...words[language] };
  return (key, values = {}) => {
    if (!(key in known)) throw new Error(`no text for ${key} in ${language}`);
    return known[key].replace(/\{(\w+)\}/g, (whole, name) => (name in values ? values[name] : whole));
  };
}
